"""A sweep on the inline backend that kills its own process, for the tests of resuming; called in child processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import hpsearch
from hpsearch.backends.inline import InlineBackend
from hpsearch.decision import Followed
from hpsearch.events import Event
from hpsearch.journal.journal import Journal
from hpsearch.trainable.running_trial import RunningTrial

EPOCHS = "epochs.txt"
"""Beside the study: a line for each epoch that was run, `trial iteration`."""


def train(
    epochs: Path, die_in_epoch: int = 0, prune: tuple[int, Sequence[int]] | None = None
) -> Callable[[RunningTrial], None]:
    """Return a trainable with checkpoints whose metric depends on all three global generators.

    Args:
        epochs: A line is added for each epoch.
        die_in_epoch: Its process is killed in the middle of this epoch of all, counted from 1.
        prune: In the middle of which epoch somebody asks to prune which trials.
    """

    def trainable(trial: RunningTrial) -> None:
        weight = torch.zeros(4) if trial.checkpoint is None else trial.checkpoint["weight"]
        for iteration in trial.iterations():
            noise = torch.nn.functional.dropout(torch.ones(4)) + random.random() + np.random.rand()
            weight = weight + trial.params["lr"] * noise
            with epochs.open("a") as file:
                file.write(f"{trial.number} {iteration}\n")
            count = len(epochs.read_text().splitlines())
            if prune is not None and count == prune[0]:
                with Journal.read(epochs.parent / "study" / "study.db") as journal:
                    journal.request("prune", {"trials": list(prune[1])}, "ada@there:7")
            if die_in_epoch and count == die_in_epoch:
                _die()
            trial.report({"loss": float(weight.sum()) / iteration}, checkpoint={"weight": weight})

    return trainable


def begin(
    study: str,
    every: int | None,
    run_cap: int | None = None,
    die_in_epoch: int = 0,
    prune: tuple[int, Sequence[int]] | None = None,
) -> None:
    """Run the sweep, or go on with it."""
    hpsearch.search(
        train(Path(study).parent / EPOCHS, die_in_epoch, prune),
        parameters={"parameters": {"lr": hpsearch.LogUniform(1e-3, 1.0)}, "name": "killed"},
        metric="loss",
        early_terminate=hpsearch.Hyperband(9),
        run_cap=run_cap,
        checkpoints={"every": every},
        directory=study,
        backend="inline",
        observers=[],
        progress=False,
    )


def begin_and_prune(study: str, epoch: int, trials: Sequence[int], dies: bool = False, number: int = 0) -> None:
    """Run the sweep, and ask in the middle of this epoch of all to prune trials.

    Args:
        study: Its directory.
        epoch: Counts from 1.
        trials: Their numbers.
        dies: The process is killed by SIGKILL before it looks at that.
        number: It is killed when the journal holds so many events; 0: it isn't.
    """
    InlineBackend.tick = 0.0  # it looks at every report
    if number:
        begin_and_die_after_event(study, None, number, prune=(epoch, trials))
    else:
        begin(study, None, die_in_epoch=epoch if dies else 0, prune=(epoch, trials))


def begin_and_die_after_event(
    study: str,
    every: int | None,
    number: int,
    run_cap: int | None = None,
    prune: tuple[int, Sequence[int]] | None = None,
) -> None:
    """Run the sweep until its journal holds so many events, and be killed by SIGKILL there."""
    die_after_event(number)
    begin(study, every, run_cap, prune=prune)


def die_after_event(number: int) -> None:
    """Let this process be killed by SIGKILL when the journal that it writes holds so many events."""
    append = Journal.append

    def append_and_die(
        journal: Journal, events: Sequence[Event], followed: Sequence[Followed], when: float
    ) -> list[tuple[int, float]]:
        (written,) = journal._connection.execute("SELECT count(*) FROM events").fetchone()
        places = append(journal, events[: number - written], followed[: number - written], when)
        if written + len(events) >= number:
            _die()
        return places

    Journal.append = append_and_die  # type: ignore[method-assign, assignment]


def begin_and_die_in_epoch(study: str, every: int | None, epoch: int) -> None:
    """Run the sweep until the middle of this epoch of all, and be killed by SIGKILL there."""
    begin(study, every, die_in_epoch=epoch)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
