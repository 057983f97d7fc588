"""A `functools.partial` as a trainable."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.trainable.running_trial import RunningTrial
from tests.hpsearch.support.command_line import Call, call


def train(trial: RunningTrial, scale: float) -> None:
    for _ in trial.iterations():
        trial.report({"loss": trial.params["x"] * scale})


class Train:
    def __init__(self, trial: RunningTrial, scale: float) -> None:
        self.loss = trial.params["x"] * scale

    def step(self) -> dict[str, float]:
        return {"loss": self.loss}


@pytest.fixture
def hpsearch_command(capsys: pytest.CaptureFixture[str]) -> Call:
    return functools.partial(call, capsys)


@pytest.mark.parametrize("trainable", [train, Train])
def test_a_partial_is_a_trainable_that_goes_on_with_the_same_call(
    tmp_path: Path, hpsearch_command: Call, trainable: Any
) -> None:
    study = hpsearch.search(
        functools.partial(functools.partial(trainable), scale=2.0),
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric="loss",
        run_cap=2,
        max_iter=3,
        backend="inline",
        progress=False,
        observers=[],
        directory=tmp_path / "study",
    )
    assert [(row.iterations, row.value) for row in study.trials] == [(3, row.params["x"] * 2) for row in study.trials]
    answer = hpsearch_command("resume", tmp_path / "study")
    assert answer.code == 1
    assert f"its trainable '__main__:{trainable.__name__}' was given from Python" in answer.err
