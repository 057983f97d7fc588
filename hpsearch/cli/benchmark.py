"""The command that compares search methods over recorded tables."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hpsearch.benchmark.benchmark import keys_of, run_missing
from hpsearch.benchmark.report import markdown, plot, table
from hpsearch.benchmark.results import Results
from hpsearch.benchmark.suite import load_suite
from hpsearch.errors import StorageError
from hpsearch.tables.wording import counted, duration

__all__ = ["benchmark"]

_QUICK_SEEDS = 3

_TOLD_SECONDS = 10.0
"""Between two lines about how far it is."""


def benchmark(given: argparse.Namespace) -> int:
    """Run what is missing of a suite, and show what came of all."""
    suite = load_suite(given.suite, given.data)
    methods = list(dict.fromkeys(given.methods or suite.able))
    suite.check(methods)
    if not given.methods and (unable := [name for name in suite.known if name not in methods]):
        print(f"left out, as they can't search this space: {', '.join(unable)}")
    workers = list(dict.fromkeys(given.workers or suite.workers))
    if given.quick:
        workers = workers[:1]
    seeds = given.seeds or (min(_QUICK_SEEDS, suite.seeds) if given.quick else suite.seeds)
    directory = given.dir or Path("runs") / f"benchmark-{suite.name}"
    results = Results(directory, suite)
    keys = keys_of(suite, methods, workers, seeds)
    jobs = given.jobs or os.cpu_count() or 1
    try:
        run_missing(suite, results, keys, jobs, _Progress())
    except KeyboardInterrupt:
        print(f"interrupted; what was done is in {directory}, and the same command goes on", file=sys.stderr)
        return 130
    results.keep(keys)
    told = table(suite, results, methods, workers)
    size = f"{counted(len(suite.tasks), 'task')}, {counted(seeds, 'seed')}"
    print(f"{suite.name}: {size}; means over tasks ± their standard error")
    print(told, end="")
    try:
        (directory / "table.md").write_text(markdown(suite, results, methods, workers), "utf-8")
        shown = [str(path) for count in workers for path in plot(suite, results, methods, count, directory)]
    except OSError as error:
        raise StorageError(
            f"{directory}: expected a place for the table and plots that can be written: {error}"
        ) from error
    print(f"plots: {', '.join(shown)}")
    return 0


class _Progress:
    """Says now and then how many runs are done."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._before: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._before is None:
            self._before = done
            if done:
                print(f"{done:,} of {counted(total, 'run')} are there already", file=sys.stderr)
        if now - self._told < _TOLD_SECONDS:
            return
        self._told = now
        left = (total - done) * (now - self._began) / max(done - self._before, 1)
        print(f"{done:,} of {counted(total, 'run')}, ~{duration(left)} left", file=sys.stderr)
