"""ASHA on simulated workers, as a yardstick: how long until its first trial has run all iterations.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2: a worker that is free
promotes a trial that is among the best 1 of eta of its rung and was not promoted yet, from the highest rung that has
one; where none has, it starts a new trial in the lowest rung. Nothing waits, so every worker is always busy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


def asha_makespan(
    workers: int,
    max_iter: int,
    eta: int,
    loss: Callable[[int], float],
    seconds: Callable[[int], float] = float,
) -> float:
    """Return the time at which the first trial has run `max_iter` iterations, of which the first rung takes one.

    Args:
        workers: Each runs one trial at a time.
        max_iter: R.
        eta: 1 of `eta` trials goes on.
        loss: The final loss of a trial by its number; the less the better, and at each rung in the same order.
        seconds: What iterations take on one worker.
    """
    ends: list[tuple[float, int, int]] = []  # heap: end, trial, rung
    losses: list[list[tuple[float, int]]] = [[]]  # by rung, of the trials that have ended there, best first
    promoted: list[set[int]] = [set()]
    clock, created = 0.0, 0
    while True:
        for _ in range(workers - len(ends)):
            trial, rung = _job(losses, promoted, eta) or (created, 0)
            created += rung == 0
            until = min(eta**rung, max_iter)
            since = eta ** (rung - 1) if rung else 0
            heapq.heappush(ends, (clock + seconds(until - since), trial, rung))
        clock, trial, rung = heapq.heappop(ends)
        if eta**rung >= max_iter:
            return clock
        _insert(losses, promoted, trial, rung, loss(trial))


def _job(losses: list[list[tuple[float, int]]], promoted: list[set[int]], eta: int) -> tuple[int, int] | None:
    """Return the trial to promote and its next rung; None if there is none."""
    for rung in range(len(losses) - 1, -1, -1):
        for _, trial in losses[rung][: len(losses[rung]) // eta]:
            if trial not in promoted[rung]:
                promoted[rung].add(trial)
                return trial, rung + 1
    return None


def _insert(
    losses: list[list[tuple[float, int]]], promoted: list[set[int]], trial: int, rung: int, loss: float
) -> None:
    while len(losses) <= rung:
        losses.append([])
        promoted.append(set())
    losses[rung].append((loss, trial))
    losses[rung].sort()
