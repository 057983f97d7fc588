"""What a function finds that looks at `trial.checkpoint` in its loop, after newer checkpoints were written."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.trainable.running_trial import RunningTrial


@pytest.mark.parametrize("kind", ["state", "directory"])
def test_a_look_in_the_loop_finds_what_the_segment_began_with(tmp_path: Path, kind: str) -> None:
    def done(trial: RunningTrial) -> int:
        if trial.checkpoint is None:
            return 0
        return int((trial.checkpoint / "done").read_text()) if kind == "directory" else trial.checkpoint["done"]

    def train(trial: RunningTrial) -> None:
        folder = trial.directory / "state"
        folder.mkdir()
        for iteration in trial.iterations():
            (folder / "done").write_text(str(iteration))
            offered = folder if kind == "directory" else {"done": iteration}
            trial.report({"began": done(trial), "score": trial.params["x"]}, checkpoint=offered)
            assert done(trial) == trial.start

    study = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric={"name": "score", "goal": "maximize"},
        checkpoints={"every": 1},
        early_terminate=hpsearch.SuccessiveHalving(max_iter=16, min_iter=4, eta=2, trials=6),
        backend="inline",
        directory=tmp_path / "study",
        progress=False,
        observers=[],
        limits={"max_failures": 1},
    )
    assert study.iterations == 44  # none was run again
    assert {row.metrics["began"] for row in study.trials} == {0, 4, 8}
    left = sorted(path.name for path in (tmp_path / "study").rglob("hpsearch-checkpoint-*"))
    assert left == ["hpsearch-checkpoint-16"]
