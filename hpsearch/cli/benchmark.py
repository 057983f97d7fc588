"""`hpsearch benchmark`: compare search methods on recorded tables."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpsearch.benchmark.families import FEWEST_TASKS, Family, family_rows, half_of
from hpsearch.benchmark.report import aligned, markdown, plot, suite_rows
from hpsearch.benchmark.runs import Results, keys_of, run_missing
from hpsearch.benchmark.suite import Suite, load_suites
from hpsearch.cli.arguments import comma_list, positive
from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import writing
from hpsearch.tables.wording import counted, duration

_QUICK_SEEDS = 3

_TOLD_SECONDS = 10.0
"""Seconds between two lines of progress."""


def benchmark_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch benchmark`."""
    command.add_argument("suite", type=Path, metavar="SUITE.yaml")
    comma_list(command, "--methods", str, "NAME", "which (default: all that there are); the first is compared with")
    command.add_argument("--seeds", type=positive, metavar="N", help="runs of each method on each task")
    comma_list(command, "--workers", positive, "N", "numbers of virtual workers, e.g. 1,4,16")
    text = "every second task: the first, third, ... to choose a default on, the others to report it on"
    command.add_argument("--half", choices=["choose", "report"], help=text)
    command.add_argument("--quick", action="store_true", help="few seeds, and the first number of workers alone")
    command.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per CPU)")
    text = "where the tables' files are, if not beside their descriptions"
    command.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--dir", type=Path, help="for the results (default: runs/benchmark-<suite>)")


def benchmark(args: argparse.Namespace) -> int:
    """Run the missing runs of a suite or of several suites, and show all results."""
    suites = load_suites(args.suite, args.data)
    directory = args.dir or Path("runs") / f"benchmark-{suites[0].name if len(suites) == 1 else args.suite.stem}"
    if len(suites) > 1:
        return _benchmark_families(suites, args, directory)
    suite = half_of(suites[0], args.half)
    if not suite.tasks:
        raise HpsearchError(f"{suite.path}: must have two tasks for --half report, but it has one")
    methods = list(dict.fromkeys(args.methods or suite.able))
    suite.check(methods)
    return 130 if _run_suite(suite, methods, args, directory) is None else 0


def _benchmark_families(suites: Sequence[Suite], args: argparse.Namespace, directory: Path) -> int:
    families = []
    for whole in suites:
        suite = half_of(whole, args.half)
        if args.methods:
            suite.check_names(args.methods)
        methods = [name for name in dict.fromkeys(args.methods or whole.able) if name in whole.able]
        if not suite.tasks or not methods:
            why = "it has one task" if methods else "none of the methods can search its space"
            print(f"{suite.name}: left out, as {why}\n")
            continue
        suite.check(methods)
        results = _run_suite(suite, methods, args, directory / suite.name)
        if results is None:
            return 130
        judged = len(whole.tasks) >= FEWEST_TASKS
        families.append(Family(suite, results, methods, (args.workers or suite.workers)[0], judged))
        print()
    rows = list(family_rows(families))
    print("hits by " + "; ".join(f"{each.suite.name}: {_budgets(each.suite)}" for each in families))
    print(aligned(rows), end="")
    print("difference: in hits from the first method by the middle budget, a 95 % interval over tasks and seeds")
    if not all(family.judged for family in families):
        print(f"*: fewer than {FEWEST_TASKS} tasks, not in the mean rank")
    with writing(f"{directory}: expected a folder for the table that can be written"):
        (directory / "families.md").write_text(markdown(rows), "utf-8")
    return 0


def _budgets(suite: Suite) -> str:
    return "/".join(f"{budget:g}" for budget in suite.budgets)


def _run_suite(suite: Suite, methods: Sequence[str], args: argparse.Namespace, directory: Path) -> Results | None:
    """Run a suite's missing runs and print its table. Return the results, or None if Ctrl-C ended them."""
    if not args.methods and (unable := [name for name in suite.known if name not in methods]):
        print(f"left out, as they can't search this space: {', '.join(unable)}")
    workers = list(dict.fromkeys(args.workers or suite.workers))
    if args.quick:
        workers = workers[:1]
    part = min(1.0, _QUICK_SEEDS / suite.seeds) if args.quick else 1.0
    seeds = {method: args.seeds or max(1, round(part * suite.seeds_of(method))) for method in methods}
    results = Results(directory, suite)
    keys = [key for key in keys_of(suite, methods, workers, max(seeds.values())) if key.seed < seeds[key.method]]
    jobs = args.jobs or os.cpu_count() or 1
    try:
        run_missing(suite, results, keys, jobs, _Progress())
    except KeyboardInterrupt:
        print(f"interrupted; the results so far are in {directory}, and the same command continues", file=sys.stderr)
        return None
    results.keep(keys)
    rows = list(suite_rows(suite, results, methods, workers))
    fewest, most = min(seeds.values()), max(seeds.values())
    size = f"{counted(len(suite.tasks), 'task')}, {counted(most, 'seed')}"
    size += f" ({fewest} of methods that learn)" * (fewest < most)
    print(f"{suite.name}: {size}; means over tasks ± their standard error")
    print(aligned(rows), end="")
    with writing(f"{directory}: expected a folder for the table and plots that can be written"):
        (directory / "table.md").write_text(markdown(rows), "utf-8")
        shown = [str(path) for count in workers for path in plot(suite, results, methods, count, directory)]
    print(f"plots: {', '.join(shown)}")
    return results


class _Progress:
    """Prints the progress every few seconds."""

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
