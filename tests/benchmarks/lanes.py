"""Trials trained as lanes of one computation, against plain loops that train one after the other.

Each side runs in processes of its own, with one thread and CPU time taken: a worker sets MKL_CBWR, and a plain loop
doesn't. What is timed is epochs, validation included, after one that warms up.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks.figures import Figure
from tests.benchmarks.plain_trial import PlainTrial

_LANES = 16
_WORKLOADS: Mapping[str, tuple[str, Mapping[str, Any], int, str]] = {
    "digits MLP, 64 hidden units": ("mlp", {"hidden": 64, "batch_size": 64}, 12, "at most 0.30"),
    "digits MLP, 256 hidden units": ("mlp", {"hidden": 256, "batch_size": 64}, 8, "at most 0.59"),
    "digits MLP, 128 hidden units, batch 32": ("mlp", {"hidden": 128, "batch_size": 32}, 8, ""),
    "digits MLP, 64 hidden units, Adam": ("mlp_of_adam", {"hidden": 64, "batch_size": 64}, 12, ""),
    "digits CNN, 4 channels": ("cnn", {"channels": 4, "batch_size": 64}, 4, "at most 0.77"),
    "digits CNN, 16 channels": ("cnn", {"channels": 16, "batch_size": 64}, 3, "at most 0.77"),
    "character transformer, 32 features": (
        "char_lm",
        {"length": 16, "features": 32, "batch_size": 16},
        2,
        "at most 0.83",
    ),
    "character transformer, 64 features": ("char_lm", {"length": 64, "features": 64}, 2, "at most 1.05"),
}
"""By name: the trainer, the parameters, how many epochs are timed, and the target."""
_ROUNDED: Mapping[str, str] = {
    "digits CNN, 4 channels": "at most 0.56",
    "digits CNN, 16 channels": "at most 0.56",
    "character transformer, 32 features": "",
}
"""Of these, those that are timed with rounding, too, and the target."""


def measure(rounds: int) -> list[Figure]:
    """Time epochs of lanes, of as many plain loops, and of one trainer by itself and as the only lane."""
    from tests.benchmarks.trainer_overhead import made_files

    figures = []
    with made_files() as folder:
        for name, (kind, params, epochs, target) in _WORKLOADS.items():
            given = {**params, "data": folder / "text"}
            sides = (_lanes, _loops, *([_rounded_lanes] if name in _ROUNDED else []))
            of_rounds = [[_in_a_process(side, kind, given, epochs, _LANES) for side in sides] for _ in range(rounds)]
            ours, theirs, *rounded = zip(*of_rounds, strict=True)
            figures.append(Figure(f"{_LANES} lanes, {name}", "ms/epoch", ours, target, "plain loops", theirs))
            for times in rounded:
                label = f"{_LANES} rounded lanes, {name}"
                figures.append(Figure(label, "ms/epoch", times, _ROUNDED[name], "plain loops", theirs))
        kind, params, epochs, _ = _WORKLOADS["digits MLP, 64 hidden units"]
        turns = [
            (_in_a_process(_lanes, kind, params, 4 * epochs, 1), _in_a_process(_trainer, kind, params, 4 * epochs, 1))
            for _ in range(rounds)
        ]
        ours, theirs = zip(*turns, strict=True)
        figures.append(Figure("one lane, digits MLP", "ms/epoch", ours, "at most 1.05", "a Trainer by itself", theirs))
    return figures


_Epoch = Callable[[], object]


def _lanes(trainers: list[Any]) -> _Epoch:
    from hpsearch_trainers.lanes import Fuser

    fuser = Fuser(max(2, len(trainers)))
    return lambda: fuser.step(trainers)


def _rounded_lanes(trainers: list[Any]) -> _Epoch:
    from hpsearch_trainers.lanes import RoundingFuser

    fuser = RoundingFuser(len(trainers))
    return lambda: fuser.step(trainers)


def _loops(trainers: list[Any]) -> _Epoch:
    from tests.benchmarks.plain_loop import PlainLoop

    loops = [PlainLoop(trainer.parts) for trainer in trainers]
    return lambda: [loop.epoch() for loop in loops]


def _trainer(trainers: list[Any]) -> _Epoch:
    return lambda: [trainer.step() for trainer in trainers]


def _in_a_process(side: Callable[[list[Any]], _Epoch], kind: str, params: Any, epochs: int, trials: int) -> float:
    """Return the milliseconds of CPU time that an epoch of all trials takes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_time, args=(there, side, kind, params, epochs, trials), daemon=True)
    process.start()
    milliseconds: float = here.recv()
    process.join()
    return milliseconds


def _time(answer: Connection, side: Any, kind: str, params: Mapping[str, Any], epochs: int, trials: int) -> None:
    os.environ.pop("MKL_CBWR", None)
    if side in (_lanes, _rounded_lanes):
        os.environ["MKL_CBWR"] = "AUTO"
    import torch

    from hpsearch_trainers.char_lm import CharLM
    from hpsearch_trainers.digits import CNN, MLP

    class MLPOfAdam(MLP):
        """With the optimizer that torch gives by default."""

        def build(self, params: Mapping[str, Any]) -> Any:
            parts = super().build(params)
            adam = torch.optim.Adam(parts.model.parameters(), lr=params["lr"] / 20)
            return dataclasses.replace(parts, optimizer=adam)

    torch.set_num_threads(1)
    trainer: Any = {"mlp": MLP, "mlp_of_adam": MLPOfAdam, "cnn": CNN, "char_lm": CharLM}[kind]
    made = []
    for number in range(trials):
        torch.manual_seed(number)
        lane = {"lr": 0.02 * 1.2**number, "dropout": 0.0} if kind != "char_lm" else {"lr": 1e-3 * 1.1**number}
        made.append(trainer(PlainTrial({**params, **lane})))
    epoch = side(made)
    epoch()
    began = time.process_time()
    for _ in range(epochs):
        epoch()
    answer.send(1e3 * (time.process_time() - began) / epochs)
