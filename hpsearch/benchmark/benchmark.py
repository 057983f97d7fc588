"""Run the missing runs of a benchmark in parallel processes, and store each result as it arrives."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product

from hpsearch.benchmark.results import Results
from hpsearch.benchmark.runs import RunKey, carry_out, task_of
from hpsearch.benchmark.suite import Suite
from hpsearch.worker.child_process import thread_environment

__all__ = ["keys_of", "run_missing"]


def keys_of(suite: Suite, methods: Sequence[str], workers: Sequence[int], seeds: int) -> list[RunKey]:
    """Return the runs in such an order that a part of them compares all methods."""
    return [
        RunKey(task, method, count, seed)
        for seed, count, task, method in product(range(seeds), workers, suite.tasks, methods)
    ]


def run_missing(
    suite: Suite, results: Results, keys: Sequence[RunKey], jobs: int, progress: Callable[[int, int], None]
) -> None:
    """Execute the runs that have no result yet.

    Args:
        suite: The suite.
        results: Where results are stored.
        keys: The runs.
        jobs: Number of parallel processes.
        progress: Called with (finished runs, all runs) at the start and after each.

    Raises:
        SweepError: A table can't be read, or a method can't be run on it.
    """
    missing = [key for key in keys if key not in results.courses]
    for task in dict.fromkeys(key.task for key in missing):
        task_of(suite, task)  # a mistake shows here, and not from another process
    done = len(keys) - len(missing)
    progress(done, len(keys))
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(jobs, context, _begin) as pool:
        pending = {pool.submit(carry_out, suite, key): key for key in missing}
        try:
            for future in as_completed(pending):
                results.add(pending[future], future.result())
                done += 1
                progress(done, len(keys))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a run may take minutes more; its results aren't stored yet
            raise


def _begin() -> None:
    """Initialize a process of the pool: it ignores Ctrl-C, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit processes that are started within the block to one thread: else the threads of all runs compete."""
    former = {name: os.environ.get(name) for name in thread_environment(1)}
    os.environ.update(thread_environment(1))
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
