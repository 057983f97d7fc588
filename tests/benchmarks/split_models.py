"""A character transformer split over two ranks, in a pipeline and within its layers, beside allreduce and one process.

Time of a step, and the most memory of any rank within an epoch: what the metrics say of weights, gradients and
optimizer state, and by how much the process grows from before its trainer is made, which has activations in it. Each
rank has one thread. The text is made up; how it is learned is another test's.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
import torch.distributed.tensor

from hpsearch_comm import Group
from hpsearch_trainers.char_lm import CharLM
from tests.benchmarks.figures import Figure
from tests.comm.process_ranks import ProcessRanks

_WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "allreduce": (2, {"strategy": "allreduce"}),
    **{
        f"pipeline, {schedule}, {count} micro-batches": (
            2,
            {"strategy": "pipeline", "schedule": schedule, "micro_batches": count},
        )
        for schedule, counts in (("gpipe", (1, 2, 4, 8)), ("1f1b", (4, 8)))
        for count in counts
    },
    "tensor": (2, {"strategy": "tensor"}),
}
_LENGTH, _BATCH, _STEPS, _EPOCHS = 64, 32, 6, 3
_PARAMS = {"length": _LENGTH, "layers": 4, "heads": 4, "features": 128, "batch_size": _BATCH}


@dataclass(frozen=True, slots=True)
class _Trial:
    group: Group
    parallel: Mapping[str, Any]
    params: Mapping[str, Any]
    scaling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7

    @property
    def world_size(self) -> int:
        return self.group.size


def _trainer(group: Group, way: str, text: str) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    return CharLM(_Trial(group, _WAYS[way][1], {**_PARAMS, "data": text}))


def timed(group: Group, way: str, text: str) -> tuple[float, float]:
    """Return the seconds of a step, in the fastest epoch after the first, and `bytes_per_rank`; called on a rank."""
    trainer = _trainer(group, way, text)
    seconds = []
    for _ in range(_EPOCHS):
        group.barrier()
        trained = _ended_at(trainer)
        began = time.perf_counter()
        metrics = trainer.step()
        seconds.append((trained[0] - began) / _STEPS)
    held = metrics.get("bytes_per_rank")
    if held is None:
        state = [value for one in trainer.optimizer.state.values() for value in one.values()]
        held = sum(2 * parameter.nbytes for parameter in trainer.model.parameters()) + sum(
            value.nbytes for value in state
        )
    return min(seconds[1:]), held


def _ended_at(trainer: Any) -> list[float]:
    """Return a list to which the end of each epoch's last step is appended, before anything is gathered."""
    ended: list[float] = []
    strategy, end = trainer._strategy, type(trainer._strategy).end_epoch

    def end_epoch() -> None:
        ended.append(time.perf_counter())
        end(strategy)

    strategy.end_epoch = end_epoch
    return ended


def grown(group: Group, way: str, text: str) -> float:
    """Return by how many bytes this process grows at most during an epoch's steps; called on a rank."""
    before = _status("VmRSS")
    trainer = _trainer(group, way, text)
    trainer.step()
    strategy, start, end = trainer._strategy, trainer._strategy.start_step, trainer._strategy.end_epoch
    found: list[float] = []

    def start_step(rows: int) -> None:
        if not found:
            found.append(0.0)
        elif len(found) == 1:  # the second step: the first lets go of what is others'
            Path("/proc/self/clear_refs").write_text("5")
            found.append(0.0)
        start(rows)

    def end_epoch() -> None:
        found.append(_status("VmHWM") - before)
        end()

    strategy.start_step, strategy.end_epoch = start_step, end_epoch
    trainer.step()
    return found[-1]


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith(name)).split()[1])


@contextlib.contextmanager
def _text() -> Iterator[str]:
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        rows = _BATCH * _STEPS * 10 // 9 + 2
        path.write_text("".join(draw.choice("abcdefghijklmnopqrstuvwxyz ,.\n") for _ in range(rows * _LENGTH)))
        yield str(path)


def measure(rounds: int) -> list[Figure]:
    """Time all ways, one after the other in each round; then see once how much memory each takes."""
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    held: dict[str, float] = {}
    grows: dict[str, list[float]] = {way: [] for way in _WAYS}
    with _text() as text:
        with ProcessRanks("tests.benchmarks.split_models") as ranks:
            for _ in range(rounds):
                for way, (width, _) in _WAYS.items():
                    outcomes = ranks.call(width, "timed", way, text)
                    assert not any(outcome.error for outcome in outcomes), outcomes
                    seconds[way].append(max(outcome.result[0] for outcome in outcomes))
                    held[way] = max(outcome.result[1] for outcome in outcomes)
                    print(way, seconds[way][-1], file=sys.stderr, flush=True)
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # so that what is freed is given back, and not counted
        with ProcessRanks("tests.benchmarks.split_models") as ranks:
            for way, (width, _) in _WAYS.items():
                outcomes = ranks.call(width, "grown", way, text)
                assert not any(outcome.error for outcome in outcomes), outcomes
                grows[way].append(max(outcome.result for outcome in outcomes) / 1e6)
                print(way, grows[way][-1], file=sys.stderr, flush=True)
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
    alone = "one process"
    figures = []
    for way in _WAYS:
        peer = (alone, seconds[alone]) if way != alone else ("", [])
        figures.append(Figure(f"{way}: step", "s", seconds[way], "", *peer))
        figures.append(Figure(f"{way}: weights, gradients, state", "MB", [held[way] / 1e6], ""))
        figures.append(Figure(f"{way}: process grows by", "MB", grows[way], ""))
    return figures
