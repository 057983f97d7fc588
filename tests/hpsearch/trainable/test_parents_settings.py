"""A fork's first checkpoint that has a setting of its parent's is refused, and no other one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.errors import CheckpointError
from hpsearch.objective import Metric, Objective
from hpsearch.trainable import checkpoints
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.parents_settings import check_own_settings

Changed = dict[str, tuple[float, float]]


def group(**settings: Any) -> dict[str, Any]:
    return {"optimizer": {"state": {}, "param_groups": [{"params": [0], **settings}]}}


def check(directory: Path, before: Any, after: Any, changed: Changed) -> None:
    name = checkpoints.write(directory, 1, before, {})
    path = str(directory / name)
    objective = Objective(Metric("loss"))
    fork = Assignment(7, {}, 0, str(directory), 1, 2, path, objective, None, parent=3, parent_checkpoint=path)
    check_own_settings(after, replace(fork, changed=changed))


@pytest.mark.parametrize(
    ("name", "values", "state"),
    [
        ("lr", (0.1, 0.2), group(lr=0.1)),
        ("learning_rate", (0.1, 0.2), group(lr=0.1)),
        ("optimizer.lr", (0.1, 0.2), group(lr=0.1)),
        ("head_lr", (0.1, 0.2), group(lr=0.1)),
        ("lr", (0.1, 0.2), group(lr=torch.tensor(0.1))),
        ("lr", (0.1, 0.2), group(lr=0.05, initial_lr=0.1)),
        ("lr", (0.1, 0.2), group(lr=0.05, initial_lr=0.01, max_lr=0.1)),
        ("lr", (0.1, 0.2), {"scheduler": {"base_lrs": [0.1], "last_epoch": 3}}),
        ("weight_decay", (0.0, 0.1), group(lr=0.5, weight_decay=0)),
        ("momentum", (0.9, 0.5), {"nets": [group(lr=0.5, momentum=0.9)]}),
        ("beta1", (0.9, 0.8), group(betas=(0.9, 0.999))),
        ("nesterov", (1.0, 0.0), group(nesterov=True)),
    ],
)
def test_a_setting_of_the_parents_is_refused(tmp_path: Path, name: str, values: Any, state: Any) -> None:
    words = (
        rf"own {name}, {values[1]:g}, got {values[0]:g}, its parent's: load .* by hpsearch.restore.* of trial 3, where"
    )
    with pytest.raises(CheckpointError, match=words):
        check(tmp_path, state, state, {name: values})


@pytest.mark.parametrize(
    ("why", "before", "after", "changed"),
    [
        ("its own", group(lr=0.1), group(lr=0.2), {"lr": (0.1, 0.2)}),
        ("a schedule came by it", group(lr=0.05), group(lr=0.1), {"lr": (0.1, 0.2)}),
        ("a schedule came by it", group(lr=0.1), group(lr=0.1, initial_lr=0.2), {"lr": (0.1, 0.2)}),
        ("another name", group(lr=0.1), group(lr=0.1), {"dropout": (0.1, 0.2), "lr_decay": (0.1, 0.2)}),
        ("a constant", group(lr=0.1), group(lr=0.1), {}),
        ("both are there", group(lr=0.1), [group(lr=0.1), group(lr=0.2)], {"lr": (0.1, 0.2)}),
        ("another place", [0, group(lr=0.1)], group(lr=0.1), {"lr": (0.1, 0.2)}),
        (
            "two of a name",
            [group(lr=0.1), group(lr=0.2)],
            [group(lr=0.2), group(lr=0.1)],
            {"a.lr": (0.1, 0.2), "b.lr": (0.2, 0.1)},
        ),
        ("no settings", {"lr": 0.1}, {"lr": 0.1}, {"lr": (0.1, 0.2)}),
        ("no groups", {"param_groups": None, "base_lrs": 1}, {"param_groups": None}, {"lr": (0.1, 0.2)}),
    ],
)
def test_what_only_looks_like_it_passes(tmp_path: Path, why: str, before: Any, after: Any, changed: Changed) -> None:
    check(tmp_path, before, after, changed)


@pytest.mark.parametrize("name", ["optimizer.pt", "last.tar", "in/a/folder/state"])
@pytest.mark.parametrize("whole", [True, False])
def test_files_of_torch_are_looked_at(tmp_path: Path, name: str, whole: bool) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    torch.save(group(lr=0.1), folder / name)
    (folder / "notes.txt").write_text("lr 0.1")
    (folder / "broken.pt").write_text("lr 0.1")
    saved = folder if whole else folder / name
    with pytest.raises(CheckpointError, match=r"got 0.1, its parent's"):
        check(tmp_path, saved, saved, {"lr": (0.1, 0.2)})


def forked(tmp_path: Path, load: Any) -> hpsearch.Study:
    def train(trial: hpsearch.RunningTrial) -> None:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=trial.params["lr"], momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if trial.checkpoint is not None:
            load(optimizer, trial.checkpoint["optimizer"])
            load(scheduler, trial.checkpoint["scheduler"])
        for _ in trial.iterations():
            used = optimizer.param_groups[0]["lr"]
            weight.grad = torch.ones(1)
            optimizer.step()
            scheduler.step()
            states = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            trial.report({"loss": float(weight), "used": used}, checkpoint=states)

    return hpsearch.search(
        train,
        parameters={"lr": hpsearch.LogUniform(1e-3, 1.0)},
        metric="loss",
        method="pbt",
        early_terminate=hpsearch.PBT(max_iter=6, population=4, interval=2),
        backend="inline",
        directory=tmp_path / "study",
        observers=[],
        progress=False,
    )


def test_forks_of_a_population_train_with_their_own_rate(tmp_path: Path) -> None:
    forks = [row for row in forked(tmp_path, hpsearch.restore).trials if row.parent is not None]
    assert forks
    for row in forks:
        assert row.failure is None
        assert row.metrics["used"] == row.params["lr"] * 0.5 ** (row.iterations - 1)


def test_forks_that_load_their_parents_rate_fail(tmp_path: Path) -> None:
    study = forked(tmp_path, lambda part, state: part.load_state_dict(state))
    forks = [row for row in study.trials if row.parent is not None]
    assert forks
    for row in forks:
        assert row.failure is not None
        assert f"its own lr, {row.params['lr']:g}, got " in row.failure.message
        assert "hpsearch.restore(optimizer, state)" in row.failure.message
