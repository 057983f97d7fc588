"""Run what is missing of a benchmark, side by side in processes, and keep each result as it comes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product

from hpsearch.benchmark.results import Results
from hpsearch.benchmark.runs import RunKey, carry_out, task_of
from hpsearch.benchmark.suite import Suite

__all__ = ["keys_of", "run_missing"]


def keys_of(suite: Suite, methods: Sequence[str], workers: Sequence[int], seeds: int) -> list[RunKey]:
    """Give the runs in such an order that a part of them compares all methods."""
    return [
        RunKey(task, method, count, seed)
        for seed, count, task, method in product(range(seeds), workers, suite.tasks, methods)
    ]


def run_missing(
    suite: Suite, results: Results, keys: Sequence[RunKey], jobs: int, told: Callable[[int, int], None]
) -> None:
    """Carry out those that have no result yet.

    Args:
        suite: Where they are from.
        results: Where they are kept.
        keys: Which.
        jobs: Processes at a time.
        told: Called with (runs done, runs in all) at the start and after each.

    Raises:
        SweepError: A table can't be read, or a method can't be run on it.
    """
    missing = [key for key in keys if key not in results.courses]
    for task in dict.fromkeys(key.task for key in missing):
        task_of(suite, task)  # a mistake shows here, and not from another process
    done = len(keys) - len(missing)
    told(done, len(keys))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        pending = {pool.submit(carry_out, suite, key): key for key in missing}
        try:
            for future in as_completed(pending):
                results.add(pending[future], future.result())
                done += 1
                told(done, len(keys))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a run may take minutes more; what it has found is kept nowhere yet
            raise
