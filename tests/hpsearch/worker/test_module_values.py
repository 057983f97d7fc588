"""What a segment changes in the modules of its trainable is found; what caches do isn't."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpsearch.objective import Metric, Objective
from hpsearch.worker.job import Job
from hpsearch.worker.module_values import ModuleValues, module_changes
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import TRIAL, Listening, segment

MODULE = """
import argparse, collections, enum, functools, types
import numpy, torch

lr, name, missing, nan = 0.1, "adam", None, float("nan")
config = {"lr": 0.1, "layers": [64], "deep": {"a": {"b": 1}}, 3: "three"}
cache, seen, empty, sizes = {}, set(), [], (1, 2)
tags = {"a", "b"}
args = argparse.Namespace(lr=0.1)
space = types.SimpleNamespace(inner={"lr": 0.1})
large = list(range(5000))
table, array, many, of_type = torch.ones(3), numpy.zeros(3), torch.ones(5000), torch.Tensor
counts = collections.Counter(a=1)
json = __import__("json")
config["itself"] = config


class Config:
    lr = 0.1
    hidden = {"size": 8}


class Kind(enum.Enum):
    A = 1


current = Config()
current.momentum = 0.9


@functools.cache
def loaded(size):
    return [0] * size


def scaled(lr=1.0, config={"lr": 0.1}, seen={}, *, rates=[0.1]):
    seen[lr] = config
    return config if lr == 1.0 else rates


def train(trial):
    exec(trial.params["code"], globals())
    trial.report({"loss": 0.0})


class Train:
    def __init__(self, trial):
        self.trial = trial

    def step(self):
        exec(self.trial.params["code"], globals())
        return {"loss": 0.0}
"""

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    name = f"user_module_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


def changes(module: ModuleType, code: str) -> tuple[str, ...]:
    values = ModuleValues(module.train)
    before = values.look()
    exec(code, vars(module))
    assert module_changes(values.look()) == ()
    return tuple(name.removeprefix(f"{module.__name__}.") for name in module_changes(before))


@pytest.mark.some_cases(9)
@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("lr = 0.2", "lr"),
        ("table[0] = 2.0", "table"),
        ("table = torch.zeros(3)", "table"),
        ("array += 1", "array"),
        ("lr = 'fast'", "lr"),
        ("lr = None", "lr"),
        ("del lr", "lr"),
        ("name += 'w'", "name"),
        ("config.update(lr=0.2)", "config['lr']"),
        ("config = {**config, 'lr': 0.2}", "config['lr']"),
        ("config.pop('lr')", "config['lr']"),
        ("config['deep']['a']['b'] = 2", "config['deep']['a']['b']"),
        ("config['layers'].append(8)", "config['layers']"),
        ("config['layers'][0] = 8", "config['layers'][0]"),
        ("config['layers'] = 8", "config['layers']"),
        ("config[3] = 'four'", "config[3]"),
        ("sizes = (1, 3)", "sizes[1]"),
        ("tags.remove('a')", "tags"),
        ("args.lr = 0.2", "args.lr"),
        ("space.inner['lr'] = 0.2", "space.inner['lr']"),
        ("large[7] = 0", "large[7]"),
        ("large.pop()", "large"),
        ("counts['a'] += 1", "counts['a']"),
        ("Config.lr = 0.2", "Config.lr"),
        ("Config.hidden['size'] = 9", "Config.hidden['size']"),
        ("current.momentum = 0.8", "current.momentum"),
        ("lr, name = 1, 2", "lr, name"),
        ("scaled()['lr'] = 0.2", "scaled.config['lr']"),
        ("scaled(lr=2.0)[0] = 0.2", "scaled.rates[0]"),
    ],
)
def test_a_value_that_was_there_before_and_differs_is_named(module: ModuleType, code: str, names: str) -> None:
    assert ", ".join(changes(module, code)) == names


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "missing = 3",
        "table = torch.ones(3); many[0] = 2.0",
        "lr, nan, config = 0.1, nan * 1, dict(config)",
        "cache['a'] = 1",
        "config['new'] = 1",
        "seen.add(1); tags.add('c')",
        "empty.extend([1, 2])",
        "added = 3",
        "current.added = 3; Config.added = 3",
        "loaded(100)",
        "scaled(3.0)",
        "json.added = 1; json.encoder.FLOAT_REPR = 2",
    ],
)
def test_what_is_filled_or_gains_entries_is_left_alone(module: ModuleType, code: str) -> None:
    try:
        assert changes(module, code) == ()
    finally:
        for owner, name in ((json, "added"), (json.encoder, "FLOAT_REPR")):
            vars(owner).pop(name, None)


def test_of_many_changes_the_first_are_named(module: ModuleType) -> None:
    assert changes(module, "large[:9] = [-1] * 9")[-2:] == ("large[4]", "4 more")


def test_a_trainable_without_a_module_of_its_own_is_looked_at_by_its_global_names() -> None:
    """As one of a notebook is in a worker: it was pickled by value."""
    names: dict[str, Any] = {"__name__": "__main__", "config": {"lr": 0.1}}
    exec("def train(trial): config['lr'] = trial", names)
    before = ModuleValues(names["train"]).look()
    names["train"](0.2)
    assert module_changes(before) == ("__main__.config['lr']",)


@pytest.mark.parametrize("kind", ["train", "Train"])
def test_a_segment_that_changes_its_modules_says_so(tmp_path: Path, module: ModuleType, kind: str) -> None:
    job = Job(str(tmp_path), "sweep", getattr(module, kind), (), Objective(Metric("loss")), None, 1)
    worker = Worker(job, tmp_path)
    found = [
        worker.run(replace(TRIAL, params={"code": code}), segment(0, 1, attempt=attempt), Listening()).module_changes
        for attempt, code in enumerate(("config['lr'] = 1", "cache[1] = 2", "config['lr'] = 2; fail"), 1)
    ]
    worker.close()
    name = f"{module.__name__}.config['lr']"
    assert found == [(name,), (), (name,)]
    log = tmp_path / "trials" / "00003" / "1" / "output.log"
    assert f"changed in this segment, and left so in its process: {name}\n" in log.read_text()


def test_what_a_partial_adds_is_looked_at_too(module: ModuleType) -> None:
    config = {"lr": 0.1}
    before = ModuleValues(functools.partial(module.train, config=config)).look()
    config["lr"] = 0.2
    assert module_changes(before) == ("functools.partial.keywords['config']['lr']",)
