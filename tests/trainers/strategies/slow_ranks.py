"""What a rank does in a test of slow ones: one of them gets little time, or none for a while; on process_ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - optimizers import it when the first is made: here before ranks are forked

from hpsearch_comm import Group
from hpsearch_trainers.strategies import STRATEGIES
from tests.hpsearch.support.conditions import wait_until
from tests.trainers.strategies.documented import documented_strategy
from tests.trainers.strategies.problems import Problem, Watch
from tests.trainers.test_trainer import FakeTrial

EPOCHS = 3

STRATEGIES["compressed_allreduce"] = documented_strategy()


def undisturbed(group: Group, parallel: Mapping[str, Any]) -> list[dict[str, float]]:
    """Train; return each epoch's metrics, as the others do."""
    return _train(Problem(FakeTrial({}, group, parallel=parallel)))


def dragged(group: Group, parallel: Mapping[str, Any], victim: int) -> list[dict[str, float]]:
    """Train while a rank gets a tenth of its time: another one stops its process again and again, wherever it is."""
    pids = group.allgather_object(os.getpid())
    trainer = Problem(FakeTrial({}, group, parallel=parallel))
    if group.rank == (victim + 1) % group.size:
        with _dragging(pids[victim]) as stops:
            metrics = _train(trainer)
        assert len(stops) >= 10
    else:
        metrics = _train(trainer)
    group.barrier()
    return metrics


def paused(
    group: Group, parallel: Mapping[str, Any], victim: int, striking: int, seconds: float | None
) -> list[dict[str, float]]:
    """Train while a rank's process is stopped in the midst of an epoch.

    Args:
        group: The ranks.
        parallel: The trial's.
        victim: It.
        striking: The rank that stops it, which trains; the victim itself, where it does.
        seconds: For which it is stopped; None: until another rank has given up.
    """
    pids = group.allgather_object(os.getpid())
    watch = Watch(60, lambda: os.kill(pids[victim], signal.SIGSTOP)) if group.rank == striking else None
    trainer = Problem(FakeTrial({"watch": watch}, group, parallel=parallel))
    if group.rank != (victim + 1) % group.size:
        return _train(trainer)
    waking = threading.Thread(target=_wake, args=(pids[victim], seconds))
    if seconds is not None:
        waking.start()
    try:
        metrics = _train(trainer)
    finally:
        if seconds is None:
            _wake(pids[victim], 0.0)
    waking.join()
    return metrics


def _wake(pid: int, seconds: float) -> None:
    """Wait until a process is stopped, and for so long; let it go on."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, as a group does that fails before
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ")
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def _train(trainer: Problem) -> list[dict[str, float]]:
    return [{name: value for name, value in trainer.step().items() if name != "data_wait"} for _ in range(EPOCHS)]


@contextlib.contextmanager
def _dragging(pid: int) -> Iterator[list[int]]:
    """Let a process run for 2 ms of 20; return a list that has an entry for each time that it was stopped."""
    stops: list[int] = []
    enough = threading.Event()

    def drag() -> None:
        while not enough.wait(0.002):
            os.kill(pid, signal.SIGSTOP)
            enough.wait(0.018)
            os.kill(pid, signal.SIGCONT)
            stops.append(pid)

    thread = threading.Thread(target=drag)
    thread.start()
    try:
        yield stops
    finally:
        enough.set()
        thread.join()
