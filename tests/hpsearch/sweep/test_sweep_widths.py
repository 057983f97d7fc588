"""How many workers a trial gets and how it scales with them, as a sweep file says it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from hpsearch.errors import SweepError
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.parts import Scaling
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.scaling import Scaling as TrainersScaling

BASE = """\
trainable: package.module:function
metric:
  name: loss
method: random
run_cap: 5
parameters:
  lr:
    min: 0.1
    max: 1.0
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep file that ends with this; return the name that errors call it by."""
    monkeypatch.chdir(tmp_path)

    def write(section: str) -> str:
        Path("sweep.yaml").write_text(f"{BASE}{section}\n")
        return "sweep.yaml"

    return write


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (
            "resources: {workers_per_trial: 0}",
            "sweep.yaml:10: resources.workers_per_trial: must be at least 1, got 0",
        ),
        (
            "resources: {workers_per_trial: two}",
            "sweep.yaml:10: resources.workers_per_trial: must be an integer, got 'two'",
        ),
        (
            "resources:\n  workers_per_trial: 4\n  max_workers_per_trial: 2",
            "sweep.yaml:12: resources.max_workers_per_trial: must be at least workers_per_trial (4), got 2",
        ),
        (
            "resources:\n  max_workers_per_trial: 0",
            "sweep.yaml:11: resources.max_workers_per_trial: must be at least 1, got 0",
        ),
        (
            "resources:\n  workers: 2\n  workers_per_trial: 4",
            "sweep.yaml:11: resources.workers: must be at least workers_per_trial (4), got 2: a trial takes 4 at once\n"
            "  raise it, or lower workers_per_trial",
        ),
        ("resources: {elastic: 'yes'}", "sweep.yaml:10: resources.elastic: must be true or false, got 'yes'"),
        (
            "resources: {worker_per_trial: 2}",
            "sweep.yaml:10: resources.worker_per_trial: isn't a known key\n  did you mean workers_per_trial?",
        ),
        ("workers_per_trial: 2", "sweep.yaml:10: workers_per_trial: isn't a known key\n  it belongs under resources"),
        ("elastic: false", "sweep.yaml:10: elastic: isn't a known key\n  it belongs under resources"),
        ("warmup_epochs: 5", "sweep.yaml:10: warmup_epochs: isn't a known key\n  it belongs under scaling"),
        ("scaling: linear", "sweep.yaml:10: scaling: must be a mapping with keys such as batch, lr, warmup_epochs"),
        (
            "scaling: {batch: per_wroker}",
            "sweep.yaml:10: scaling.batch: must be global or per_worker, got 'per_wroker'\n  did you mean per_worker?",
        ),
        (
            "scaling: {lr: lienar}",
            "sweep.yaml:10: scaling.lr: must be linear or sqrt or none, got 'lienar'\n  did you mean linear?",
        ),
        ("scaling: {lr: 0.1}", "sweep.yaml:10: scaling.lr: must be linear or sqrt or none, got 0.1"),
        (
            "scaling:\n  batch: global\n  warmup_epochs: -1",
            "sweep.yaml:12: scaling.warmup_epochs: must be at least 0, got -1.0",
        ),
        ("scaling: {warmup_epochs: few}", "sweep.yaml:10: scaling.warmup_epochs: must be a number, got 'few'"),
        ("scaling: {max_global_batch: 0}", "sweep.yaml:10: scaling.max_global_batch: must be at least 1, got 0"),
        ("scaling: {max_global_batch: 1.5}", "sweep.yaml:10: scaling.max_global_batch: must be an integer, got 1.5"),
        ("scaling: {tolerance: -0.1}", "sweep.yaml:10: scaling.tolerance: must be at least 0, got -0.1"),
        ("scaling: {tolerance: .inf}", "sweep.yaml:10: scaling.tolerance: must be a finite number, got inf"),
        ("scaling: {warmup: 5}", "sweep.yaml:10: scaling.warmup: isn't a known key\n  did you mean warmup_epochs?"),
    ],
)
def test_a_mistake_is_one_error_with_file_line_and_key(write, section, expected):
    with pytest.raises(SweepError) as caught:
        load_sweep(write(section))
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("resources", "widest"),
    [
        ("{}", 1),
        ("{workers_per_trial: 2}", 2),
        ("{workers_per_trial: 2, max_workers_per_trial: 4}", 4),
        ("{workers_per_trial: 2, max_workers_per_trial: 4, elastic: false}", 2),
        ("{workers: 2, max_workers_per_trial: 4}", 4),
    ],
)
def test_a_trial_may_be_as_wide_as_the_resources_say(write, resources, widest):
    assert load_sweep(write(f"resources: {resources}")).resources.widest == widest


def test_the_trainers_know_the_same_scaling():
    """`tolerance` is the sweep's alone: it says when a trial is taken back, not how it trains."""
    ours = {field.name: field.default for field in fields(Scaling) if field.name != "tolerance"}
    assert ours == {field.name: field.default for field in fields(TrainersScaling)}
    assert TrainersScaling.from_dict(Scaling().for_trainers()) == TrainersScaling()
    kinds = get_type_hints(Scaling)
    rules, none = get_args(kinds["lr"])
    assert none is type(None)
    for key, words in (("batch", get_args(kinds["batch"])), ("lr", get_args(rules))):
        for word in words:
            given = replace(Scaling(), **{key: word})
            assert getattr(TrainersScaling.from_dict(given.for_trainers()), key) == word
        with pytest.raises(ConfigurationError, match=f"^scaling.{key} must be one of {', '.join(words)}, got 'x'$"):
            TrainersScaling.from_dict({key: "x"})
