"""Former keywords of `search`: each gives the sweep of the new call, and a warning that shows it."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.run.search_sweep import MOVED, sweep_of_search, with_old_keywords
from tests.hpsearch.support.simulations import Bowl

SPACE = {"x": hpsearch.Uniform(0.0, 1.0)}

OLD: dict[str, Any] = {
    "name": "other",
    "constraints": ["x < 0.9"],
    "outcome_constraints": ["loss <= 1"],
    "points_to_try": [{"x": 0.5}],
    "on_end": "true",
    "scaling": {"batch": "per_worker"},
    "suggestions": {"ahead": False},
    "goal": "maximize",
    "metric_scope": "best",
    "metric_target": 0.5,
    "keep_checkpoints": "all",
    "checkpoint_every": 2,
    "workers": 2,
    "cpus_per_worker": 2,
    "gpus_per_worker": 0.5,
    "workers_per_trial": 1,
    "max_workers_per_trial": 3,
    "elastic": False,
    "fresh_process": True,
    "trials_per_worker": 4,
    "fuse": "auto",
    "max_time": 3600.0,
    "trial_timeout": 60.0,
    "max_retries": 2,
    "max_failures": 3,
    "patience": 20,
}
"""By keyword, a value."""


ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("method", "search", "limits", "checkpoints", "seed", "observers")),
    "parameters": SPACE,
    "metric": "loss",
    "method": "tpe",
    "max_iter": 2,
    "resources": {},
}


def sweep_of(arguments: dict[str, Any]) -> hpsearch.Sweep:
    return sweep_of_search(arguments, "package.module:train", "study", progress=False)


def test_every_one_has_its_case():
    assert MOVED.keys() == OLD.keys() | {"sweep"}


@pytest.mark.parametrize("name", OLD)
def test_an_old_keyword_gives_the_sweep_of_the_new_call_and_warns(name):
    value = OLD[name]
    key, *inside = MOVED[name]
    with pytest.warns(DeprecationWarning, match=name) as caught:
        old = sweep_of(with_old_keywords(ARGUMENTS, {name: value}))
    new = {**({"name": "loss"} if key == "metric" else {}), inside[0]: value} if inside else value
    if key in ARGUMENTS:
        shown = f"search(trainable, ..., {key}={new!r})"
        assert old == sweep_of({**ARGUMENTS, key: new})
    else:
        shown = f"search(trainable, {{'parameters': ..., {key!r}: {new!r}}})"
        assert old == sweep_of({**ARGUMENTS, "parameters": {"parameters": SPACE, key: new}})
    assert old != sweep_of(ARGUMENTS) or name in ("workers_per_trial", "fuse")
    assert [str(one.message) for one in caught] == [f"search: {name} is deprecated; write {shown}"]


def test_one_that_the_new_call_says_too_is_refused():
    for old, beside in (
        ({"workers": 2}, {"resources": {"workers": 2}}),
        ({"workers": 2}, {"resources": hpsearch.Resources(3)}),
        ({"goal": "maximize"}, {"metric": hpsearch.Metric("loss")}),
        ({"suggestions": {"lag": 2}}, {"search": {"lag": 2}}),
        ({"sweep": SPACE}, {}),
    ):
        with pytest.raises(SweepError, match=f"search: {next(iter(old))} must not be passed with"):
            with_old_keywords({**ARGUMENTS, **beside}, old)


def test_a_search_takes_them_and_warns_of_all_of_them_at_its_call(tmp_path):
    words = r"search: workers, goal, sweep, tensorboard are deprecated; write search\(trainable, \.\.\., "
    words += r"resources={'workers': 1}, metric={'name': 'loss', 'goal': 'maximize'}, parameters=.* and observers=\[\]"
    fixed: dict[str, Any] = {"backend": "simulated", "directory": tmp_path / "study", "progress": False}
    with pytest.warns(DeprecationWarning, match=words) as caught:
        study = hpsearch.search(
            Bowl, metric="loss", run_cap=2, **fixed, workers=1, goal="maximize", sweep=SPACE, tensorboard=False
        )
    assert [one.filename for one in caught] == [__file__]
    assert study.sweep.metric == hpsearch.Metric("loss", "maximize")
    assert not (tmp_path / "study" / "tensorboard").exists()
    with pytest.warns(DeprecationWarning, match=r"write ray\.init\(address=\.\.\.\) before it, or RAY_ADDRESS"):
        hpsearch.search(Bowl, study.sweep, **fixed, observers=[], address="127.0.0.1:6379")
