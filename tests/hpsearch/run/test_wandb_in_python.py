"""W&B's dictionary and its notation, in Python."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.space import Categorical, Constant, IntUniform, LogUniform, Uniform
from tests.hpsearch.support.scripted import sweep_of

SWEEP = {
    "program": "train.py",
    "method": "random",
    "metric": {"name": "loss", "goal": "minimize"},
    "run_cap": 3,
    "parameters": {
        "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1},
        "optimizer": {"parameters": {"name": {"values": ["adam", "sgd"]}, "momentum": {"min": 0.0, "max": 0.9}}},
        "epochs": {"value": 2},
    },
}


def train(trial: hpsearch.RunningTrial) -> None:
    """Report as often as `epochs` says."""
    for _ in range(trial.params["epochs"]):
        trial.report({"loss": trial.params["lr"]})


def distributions(study: hpsearch.Study) -> dict[str, object]:
    return {one.name: one.distribution for one in study.sweep.parameters.parameters}


QUIET: dict[str, Any] = {"backend": "inline", "observers": [], "progress": False}


def test_wandbs_dictionary_is_the_second_argument(tmp_path):
    study = hpsearch.search(train, SWEEP, directory=tmp_path / "study", **QUIET)
    assert len(study.trials) == 3
    assert distributions(study)["lr"] == LogUniform(1e-4, 0.1)
    assert study.sweep.program is None


def test_wandbs_notation_stands_among_ours(tmp_path):
    study = hpsearch.search(
        train,
        parameters={
            "lr": {"min": 0.0, "max": 0.5},
            "layers": {"min": 1, "max": 4},
            "epochs": {"value": 1},
            "net": {"act": {"values": ["relu", "gelu"]}, "width": hpsearch.IntUniform(8, 16)},
            "optimizer": {"parameters": {"name": {"values": ["adam"]}}},
        },
        metric="loss",
        run_cap=2,
        directory=tmp_path / "study",
        **QUIET,
    )
    assert distributions(study) == {
        "lr": Uniform(0.0, 0.5),
        "layers": IntUniform(1, 4),
        "epochs": Constant(1),
        "net.act": Categorical(["relu", "gelu"]),
        "net.width": IntUniform(8, 16),
        "optimizer.name": Categorical(["adam"]),
    }


def test_a_mistake_in_wandbs_notation_names_the_parameter():
    with pytest.raises(SweepError, match=r"parameters\.lr\.max: must be"):
        hpsearch.search(train, parameters={"lr": {"min": 1.0, "max": 0.5}}, metric="loss", run_cap=2)


def test_a_tuple_is_neither_a_choice_nor_a_constant_in_silence():
    with pytest.raises(SweepError, match=r"lr: .*got the tuple .*\n.*hpsearch\.Uniform\(0\.001, 0\.1\) for a range"):
        hpsearch.search(train, parameters={"lr": (0.001, 0.1)}, metric="loss", run_cap=2)


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"run_cap": 2}, "run_cap"),
        ({"method": "grid", "run_cap": 1}, "method and run_cap"),
        ({"metric": "acc"}, "metric"),
    ],
)
def test_what_a_whole_sweep_has_itself_is_refused_beside_it(tmp_path, beside, named):
    for sweep in (SWEEP, {"sweep": SWEEP}, sweep_of(trainable="a.b:c")):
        with pytest.raises(SweepError, match=f"search: {named} must not be passed with a whole sweep"):
            hpsearch.search(train, sweep, directory=tmp_path / "study", **beside, **QUIET)
    assert not (tmp_path / "study").exists()


def test_what_a_dictionary_leaves_out_may_stand_beside_it(tmp_path):
    study = hpsearch.search(train, SWEEP, seed=7, limits={"patience": 9}, directory=tmp_path / "study", **QUIET)
    assert (study.sweep.seed, study.sweep.limits.patience) == (7, 9)
    with pytest.raises(SweepError, match="search: limits and seed must not be passed with a whole sweep"):
        hpsearch.search(train, sweep_of(trainable="a.b:c"), seed=7, limits={"patience": 9}, **QUIET)


def test_keys_that_are_no_argument_stand_with_the_parameters(tmp_path):
    parameters = {"lr": hpsearch.Uniform(0.0, 1.0), "epochs": [1, 2], "net": {"width": {"min": 1, "max": 9}}}
    sweep = {"parameters": parameters, "constraints": "lr < 0.9", "points_to_try": [{"lr": 0.5}], "name": "kept"}
    study = hpsearch.search(train, sweep, metric="loss", run_cap=2, directory=tmp_path / "study", **QUIET)
    assert distributions(study)["net.width"] == IntUniform(1, 9)
    assert study.trials[0].params["lr"] == 0.5
    assert study.sweep.name == "kept"
    space = hpsearch.Space.from_parameters(parameters | {"net": 1}, constraints=["lr < 0.9"])
    for one in (space, {"parameters": space}):
        again = hpsearch.search(train, one, metric="loss", run_cap=1, directory=tmp_path / "again", **QUIET)
        assert again.sweep.parameters == space
    with pytest.raises(SweepError, match="constraints: must not be given with a Space, which has its own"):
        hpsearch.search(train, {"parameters": space, "constraints": "lr < 0.5"}, metric="loss", **QUIET)


def test_a_condition_in_wandbs_notation_counts():
    parameters = {"lr": [0.1, 0.2], "epochs": 1, "momentum": {"min": 0.0, "max": 1.0, "when": "lr > 0.15"}}
    assert hpsearch.Sweep(name="s", method="random", parameters=parameters).parameters.conditional


def test_a_file_is_no_sweep(tmp_path):
    with pytest.raises(SweepError, match=r"got 'sweep.yaml': read a file with load_sweep"):
        hpsearch.search(train, "sweep.yaml", directory=tmp_path / "study", **QUIET)  # type: ignore[arg-type]
