"""`hpsearch benchmark`: compare search methods on recorded tables."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hpsearch.benchmark.families import FEWEST_TASKS, Family, family_rows
from hpsearch.benchmark.report import aligned, markdown, plot, suite_rows
from hpsearch.benchmark.rows import RunRow, half_of, read_rows, run_row, write_rows
from hpsearch.benchmark.runs import Results, keys_of, run_missing
from hpsearch.benchmark.suite import Suite, load_suites
from hpsearch.cli.arguments import comma_list, positive
from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import writing
from hpsearch.journal.provenance import command_line, without_folder
from hpsearch.tables.wording import counted, duration

_QUICK_SEEDS = 3

_TOLD_SECONDS = 10.0
"""Seconds between two lines of progress."""


def benchmark_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch benchmark`."""
    text = "a suite to run; or rows.csv of earlier benchmarks, one or several files, to show their tables again"
    command.add_argument("suite", type=Path, nargs="+", metavar="SUITE.yaml", help=text)
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
    """Run the missing runs of a suite or of several suites and show all results, or show those of earlier runs."""
    if all(path.suffix == ".csv" for path in args.suite):
        return _show_rows(args)
    if len(args.suite) > 1:
        raise HpsearchError(
            f"{' '.join(map(str, args.suite))}: must be one suite, or rows of earlier benchmarks, as rows.csv\n"
            "  name several suites in one file: families: [one.yaml, two.yaml]"
        )
    (path,) = args.suite
    suites = load_suites(path, args.data)
    directory = args.dir or Path("runs") / f"benchmark-{suites[0].name if len(suites) == 1 else path.stem}"
    families = []
    for suite in suites:
        if args.methods:
            suite.check_names(args.methods)
        able = suite.able
        methods = [name for name in dict.fromkeys(args.methods or able) if name in able or len(suites) == 1]
        tasks = [task for task in suite.tasks if args.half in (None, half_of(suite, task))]
        if not tasks and len(suites) == 1:
            raise HpsearchError(f"{suite.path}: must have two tasks for --half report, but it has one")
        if not tasks or not methods:
            why = "it has one task" if methods else "none of the methods can search its space"
            print(f"{suite.name}: left out, as {why}\n")
            continue
        suite.check(methods)
        ran = _run_suite(suite, tasks, methods, args, directory if len(suites) == 1 else directory / suite.name)
        if ran is None:
            return 130
        families.append(Family(ran, methods, (args.workers or suite.workers)[0]))
    if not families:
        return 0
    rows = [row for family in families for row in family.rows]
    write_rows(directory / "rows.csv", rows, without_folder(command_line()))
    print(f"rows: {directory / 'rows.csv'}")
    if len(suites) > 1:
        _show_families(families, directory)
    return 0


def _show_rows(args: argparse.Namespace) -> int:
    """Show the tables of the rows of earlier benchmarks."""
    given = [name for name in ("quick", "jobs", "data") if getattr(args, name)]
    if given:
        raise HpsearchError(f"--{given[0]} must be with a suite that is run, got rows of runs: {args.suite[0]}")
    read = read_rows(args.suite)
    known = list(dict.fromkeys(row.method for row in read))
    for method in args.methods or ():
        if method not in known:
            raise HpsearchError(f"{args.suite[0]}: there is no method {method}; {nearest(method, known)}")
    by_family: dict[str, list[RunRow]] = defaultdict(list)
    for row in read:
        if args.half in (None, row.half) and (args.seeds is None or row.seed < args.seeds):
            by_family[row.family].append(row)
    families = []
    for name, rows in by_family.items():
        there = list(dict.fromkeys(row.method for row in rows))
        methods = [method for method in args.methods or there if method in there]
        workers = args.workers or sorted({row.workers for row in rows})
        if any(row.method in methods and row.workers in workers for row in rows):
            families.append(Family(rows, methods, workers[0]))
            print(f"{name}:")
            print(aligned(list(suite_rows(rows, methods, workers))))
    if not families:
        raise HpsearchError(f"{args.suite[0]}: must have rows of these methods, workers, seeds and half, got none")
    _show_families(families, args.dir)
    return 0


def _show_families(families: Sequence[Family], directory: Path | None) -> None:
    """Print the table of families, and write it to a directory, if there is one."""
    rows = list(family_rows(families))
    print("\nhits by " + "; ".join(f"{each.name}: {'/'.join(f'{b:g}' for b in each.budgets)}" for each in families))
    print(aligned(rows), end="")
    print("difference: in hits from the first method, mean of the budgets, a 95 % interval over tasks and seeds")
    if not all(family.judged for family in families):
        print(f"*: fewer than {FEWEST_TASKS} tasks, not in the mean rank")
    if directory is not None:
        with writing(f"{directory}: expected a folder for the table that can be written"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "families.md").write_text(markdown(rows), "utf-8")


def _run_suite(
    suite: Suite, tasks: Sequence[str], methods: Sequence[str], args: argparse.Namespace, directory: Path
) -> Sequence[RunRow] | None:
    """Run a suite's missing runs and print its table. Return the rows, or None if Ctrl-C ended the runs."""
    if not args.methods and (unable := [name for name in suite.known if name not in methods]):
        print(f"left out, as they can't search this space: {', '.join(unable)}")
    workers = list(dict.fromkeys(args.workers or suite.workers))
    if args.quick:
        workers = workers[:1]
    part = min(1.0, _QUICK_SEEDS / suite.seeds) if args.quick else 1.0
    seeds = {method: args.seeds or max(1, round(part * suite.seeds_of(method))) for method in methods}
    results = Results(directory, suite)
    keys = [key for key in keys_of(tasks, methods, workers, max(seeds.values())) if key.seed < seeds[key.method]]
    jobs = args.jobs or os.cpu_count() or 1
    run_as = {method: suite.run_as(method) for method in methods}
    stored = {key: key._replace(method=run_as[key.method]) for key in keys}
    try:
        run_missing(suite, results, list(dict.fromkeys(stored.values())), jobs, _Progress())
    except KeyboardInterrupt:
        print(f"interrupted; the results so far are in {directory}, and the same command continues", file=sys.stderr)
        return None
    results.courses = {key: results.courses[stored[key]] for key in keys}
    ordered = sorted(keys, key=lambda key: (tasks.index(key.task), methods.index(key.method), key.workers, key.seed))
    rows = [run_row(suite, key, results.courses[key]) for key in ordered]
    table = list(suite_rows(rows, methods, workers))
    fewest, most = min(seeds.values()), max(seeds.values())
    size = f"{counted(len(tasks), 'task')}, {counted(most, 'seed')}"
    size += f" ({fewest} of methods that learn)" * (fewest < most)
    print(f"{suite.name}: {size}; means over tasks ± their standard error")
    print(aligned(table), end="")
    with writing(f"{directory}: expected a folder for the table and plots that can be written"):
        (directory / "table.md").write_text(markdown(table), "utf-8")
        shown = [str(path) for count in workers for path in plot(suite, results, methods, count, directory)]
    print(f"plots: {', '.join(shown)}")
    return rows


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
