"""Whatever a file holds, the outcome is a `Sweep` or one `SweepError` that begins with the file's name."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.searchers import Suggestion
from hpsearch.study.build import build_searcher
from hpsearch.sweep.file import load_sweep, sweep_from_mapping
from hpsearch.sweep.sweep import Sweep

CONFIGS = [yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))]
NESTED = {
    "program": "train.py",
    "metric": {"name": "loss", "goal": "minimize"},
    "method": "grid",
    "max_iter": 3,
    "points_to_try": [{"lr": 0.5, "opt": {"name": "a", "k": 2}}],
    "resources": {
        "workers": 4,
        "cpus_per_worker": 1,
        "gpus_per_worker": 0,
        "workers_per_trial": 2,
        "max_workers_per_trial": 4,
        "elastic": True,
        "fresh_process": False,
    },
    "scaling": {"batch": "per_worker", "lr": "sqrt", "warmup_epochs": 2.5, "max_global_batch": 512, "tolerance": 0.25},
    "limits": {"max_time": "1h", "trial_timeout": 3.5, "max_retries": 1},
    "checkpoints": {"keep": "all", "every": 2},
    "seed": 3,
    "parameters": {
        "lr": {"distribution": "uniform", "min": 0.0, "max": 1.0, "points": 3},
        "opt": {"parameters": {"name": {"values": ["a", "b"]}, "k": {"min": 1, "max": 4, "q": 1}}},
    },
}
PARALLEL = {
    "trainable": "package.module:Trainer",
    "metric": {"name": "loss"},
    "method": "random",
    "max_iter": 3,
    "run_cap": 5,
    "resources": {"workers_per_trial": 3},
    "parallel": {"servers": 2, "micro_batches": 4},
    "parameters": {
        "parallel.strategy": {
            "choice": {"allreduce": None, "parameter_server": {"servers": {"min": 1, "max": 2}}, "pipeline": None}
        },
        "parallel": {"parameters": {"schedule": {"values": ["gpipe", "1f1b", None]}}},
    },
}
VALID = [*CONFIGS, NESTED, PARALLEL]

WORDS = st.sampled_from(
    [
        "min",
        "max",
        "value",
        "values",
        "q",
        "mu",
        "sigma",
        "points",
        "distribution",
        "parameters",
        "type",
        "eta",
        "max_iter",
        "min_iter",
        "s",
        "brackets",
        "trials",
        "variant",
        "uniform",
        "log_uniform",
        "normal",
        "int_uniform",
        "q_uniform",
        "grid",
        "random",
        "hyperband",
        "paper",
        "table",
        "name",
        "goal",
        "minimize",
        "best",
        "all",
        "every",
        "1h",
        "workers",
        "workers_per_trial",
        "max_workers_per_trial",
        "elastic",
        "batch",
        "tolerance",
        "per_worker",
        "parallel",
        "strategy",
        "servers",
        "parameter_server",
        "hogwild",
        "sqrt",
        "lr",
        "x.y",
        "1e-4",
        "${program}",
        "a:b",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.integers(-3, 30)
    | st.sampled_from([0.0, -1.0, 0.5, 1e308, 1e-308, 10**30])
    | st.text(max_size=6)
    | WORDS
    | st.dates()
    | st.binary(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "sweep.yaml"


def check(path: Path, content: bytes, *overrides: str) -> None:
    path.write_bytes(content)
    sweep, refused = None, ""
    try:
        sweep = load_sweep(path, overrides)
    except SweepError as error:
        refused = str(error)
    if sweep is None:
        assert refused.startswith(f"{path}:")
        return
    assert Sweep.from_json(json.loads(json.dumps(sweep.to_json(), allow_nan=False))) == sweep
    assert sweep.difference(sweep) == []
    assert sweep.strategies.of(sweep.parameters.draw(0, 0)).get("strategy", "allreduce") in sweep.strategies.possible
    suggestion = build_searcher(sweep).suggest(0)
    assert isinstance(suggestion, Suggestion)
    assert sweep.parameters.check(suggestion.params) == suggestion.params


def places(value: object, at: tuple = ()) -> list[tuple]:
    """Paths to everything inside a mapping or list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in items for path in [(*at, key), *places(item, (*at, key))]]


@st.composite
def mutated(draw) -> dict:
    """A valid sweep with one to three keys dropped, renamed, given twice over, or given another value."""
    sweep = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        spots = places(sweep)
        if not spots:
            break
        *parents, last = draw(st.sampled_from(spots))
        inside = sweep
        for key in parents:
            inside = inside[key]
        change = draw(st.sampled_from(["drop", "rename", "retype", "retype", "add"]))
        value = inside.pop(last) if change in ("drop", "rename") else inside[last]
        if change == "rename" and isinstance(inside, dict):
            inside[draw(WORDS | st.text(max_size=4) | st.integers())] = value
        elif change == "retype":
            inside[last] = draw(VALUES)
        elif change == "add" and isinstance(inside, dict):
            inside[draw(WORDS)] = draw(VALUES)
    return cast(dict, sweep)


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes(path, content):
    check(path, content)


@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet="ab:-[]{}&*!|>?#'\"%@`,<=~0123.e+ \n\t", max_size=80))
def test_anything_that_looks_like_yaml(path, text):
    check(path, text.encode())


@settings(deadline=None, max_examples=40)
@given(sweep=mutated())
def test_valid_sweeps_with_something_changed(path, sweep):
    check(path, yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True).encode("utf-8", "replace"))


@settings(deadline=None, max_examples=40)
@given(sweep=VALUES)
def test_any_structure(path, sweep):
    check(path, yaml.safe_dump(sweep).encode())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_line_of_a_valid_file_lost_doubled_or_moved(path, data):
    lines = yaml.safe_dump(data.draw(st.sampled_from(VALID)), sort_keys=False).splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    line = lines.pop(place)
    for _ in range(data.draw(st.integers(0, 2))):
        lines.insert(data.draw(st.integers(0, len(lines))), " " * data.draw(st.integers(0, 3)) + line)
    check(path, "\n".join(lines).encode())


@settings(deadline=None, max_examples=40)
@given(
    key=st.lists(WORDS | st.sampled_from(["parameters", "lr", "0", "metric"]), min_size=1, max_size=4).map(".".join)
    | st.sampled_from([".".join(map(str, spot)) for spot in places(NESTED)]),
    value=VALUES.map(lambda value: yaml.safe_dump(value, default_flow_style=True)) | st.text(max_size=10),
)
def test_any_override(path, key, value):
    check(path, yaml.safe_dump(NESTED).encode(), f"{key}={value}")


@settings(deadline=None, max_examples=40)
@given(sweep=mutated() | VALUES)
def test_any_mapping_from_python(sweep):
    with suppress(SweepError):
        assert isinstance(sweep_from_mapping(sweep), Sweep)
