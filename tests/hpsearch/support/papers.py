"""A scheduler beside the algorithm of its paper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Protocol

from hpsearch.schedulers.base import Done, NewTrial, Run, Scheduler, Wait


class Paper(Protocol):
    """An algorithm as its paper has it."""

    def get_job(self) -> NewTrial | Run | None:
        """Return what a free worker does; None if it waits."""


def jobs_of_both(
    scheduler: Scheduler, paper: Paper, workers: int, chance: random.Random
) -> Iterator[tuple[NewTrial | Run, int]]:
    """Yield each job with its trial, in any order, for both to observe; fail if the two start different ones."""
    running: list[NewTrial | Run] = []
    while True:
        while len(running) < chance.randint(1, workers):
            wanted, answer = paper.get_job(), scheduler.next()
            if wanted is None:
                assert answer == (Wait() if running else Done())
                break
            assert answer == wanted
            running.append(wanted)
        if not running:
            return
        job = running.pop(chance.randrange(len(running)))
        yield job, job.number if isinstance(job, NewTrial) else job.trial
