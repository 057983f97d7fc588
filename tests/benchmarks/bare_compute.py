"""The peer: the same training in two plain processes, without search, checkpoints or Ray."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from hpsearch.backends.ray.local_ray import NICENESS
from tests.benchmarks.plain_trial import PlainTrial

_Trials = Sequence[tuple[Mapping[str, Any], int]]


def bare_seconds(trials: _Trials, processes: int, train: Callable[[Connection, _Trials], None] | None = None) -> float:
    """Train these (params, iterations) from zero; return the seconds from the start to the last end.

    Args:
        trials: Spread so that each process gets as many iterations, as nearly as can be.
        processes: How many; each uses one thread.
        train: Says "ready", waits for a word, trains, and says "done"; None: by Trainers.
    """
    context = multiprocessing.get_context("spawn")
    ends = []
    for share in _shares(trials, processes):
        here, there = context.Pipe()
        context.Process(target=train or _train, args=(there, share), daemon=True).start()
        ends.append(here)
    for end in ends:
        end.recv()  # ready
    began = time.perf_counter()
    for end in ends:
        end.send("go")
    for end in ends:
        end.recv()
    return time.perf_counter() - began


def _shares(trials: _Trials, processes: int) -> list[list[tuple[Mapping[str, Any], int]]]:
    shares: list[list[tuple[Mapping[str, Any], int]]] = [[] for _ in range(processes)]
    for trial in sorted(trials, key=lambda trial: -trial[1]):
        min(shares, key=lambda share: sum(count for _, count in share)).append(trial)
    return shares


def _train(driver: Connection, trials: _Trials) -> None:
    import torch

    from hpsearch_trainers.digits import MLP

    os.nice(NICENESS)  # of our workers
    torch.set_num_threads(1)
    MLP(PlainTrial(trials[0][0])).step()  # loads the digits and what torch loads late
    driver.send("ready")
    driver.recv()
    for params, iterations in trials:
        training = MLP(PlainTrial(params))
        for _ in range(iterations):
            training.step()
    driver.send("done")
