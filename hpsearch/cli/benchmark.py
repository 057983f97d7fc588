"""The command that compares search methods over recorded tables."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hpsearch.benchmark.report import markdown, plot, table
from hpsearch.benchmark.runs import Results, keys_of, run_missing
from hpsearch.benchmark.suite import load_suite
from hpsearch.cli.arguments import comma_list, positive
from hpsearch.errors import StorageError
from hpsearch.tables.wording import counted, duration

__all__ = ["benchmark", "benchmark_arguments"]

_QUICK_SEEDS = 3

_TOLD_SECONDS = 10.0
"""Between two lines about how far it is."""


def benchmark_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch benchmark`."""
    command.add_argument("suite", type=Path, metavar="SUITE.yaml")
    comma_list(command, "--methods", str, "NAME", "which (default: all that there are); the first is compared with")
    command.add_argument("--seeds", type=positive, metavar="N", help="runs of each method on each task")
    comma_list(command, "--workers", positive, "N", "numbers of virtual workers, e.g. 1,4,16")
    command.add_argument("--quick", action="store_true", help="three seeds, and the first number of workers alone")
    command.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per CPU)")
    text = "where the tables' files are, if not beside their descriptions"
    command.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--dir", type=Path, help="for the results (default: runs/benchmark-<suite>)")


def benchmark(args: argparse.Namespace) -> int:
    """Run the missing runs of a suite, and show all results."""
    suite = load_suite(args.suite, args.data)
    methods = list(dict.fromkeys(args.methods or suite.able))
    suite.check(methods)
    if not args.methods and (unable := [name for name in suite.known if name not in methods]):
        print(f"left out, as they can't search this space: {', '.join(unable)}")
    workers = list(dict.fromkeys(args.workers or suite.workers))
    if args.quick:
        workers = workers[:1]
    seeds = args.seeds or (min(_QUICK_SEEDS, suite.seeds) if args.quick else suite.seeds)
    directory = args.dir or Path("runs") / f"benchmark-{suite.name}"
    results = Results(directory, suite)
    keys = keys_of(suite, methods, workers, seeds)
    jobs = args.jobs or os.cpu_count() or 1
    try:
        run_missing(suite, results, keys, jobs, _Progress())
    except KeyboardInterrupt:
        print(f"interrupted; the results so far are in {directory}, and the same command continues", file=sys.stderr)
        return 130
    results.keep(keys)
    text = table(suite, results, methods, workers)
    size = f"{counted(len(suite.tasks), 'task')}, {counted(seeds, 'seed')}"
    print(f"{suite.name}: {size}; means over tasks ± their standard error")
    print(text, end="")
    try:
        (directory / "table.md").write_text(markdown(suite, results, methods, workers), "utf-8")
        shown = [str(path) for count in workers for path in plot(suite, results, methods, count, directory)]
    except OSError as error:
        raise StorageError(
            f"{directory}: expected a folder for the table and plots that can be written: {error}"
        ) from error
    print(f"plots: {', '.join(shown)}")
    return 0


class _Progress:
    """Prints progress from time to time."""

    def __init__(self) -> None:
        self._began = self._last_print = time.monotonic()
        self._before: int | None = None

    def __call__(self, completed: int, total: int) -> None:
        now = time.monotonic()
        if self._before is None:
            self._before = completed
            if completed:
                print(f"{completed:,} of {counted(total, 'run')} are there already", file=sys.stderr)
        if now - self._last_print < _TOLD_SECONDS:
            return
        self._last_print = now
        seconds_left = (total - completed) * (now - self._began) / max(completed - self._before, 1)
        print(f"{completed:,} of {counted(total, 'run')}, ~{duration(seconds_left)} left", file=sys.stderr)
