"""The runs of a peer as rows of `hpsearch benchmark`, which shows them beside ours.

hpsearch benchmark runs/benchmark-lcbench/rows.csv PEER.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpsearch.benchmark.rows import read_rows, run_row, write_rows
from hpsearch.benchmark.runs import BenchmarkTask, RunCourse, RunKey, task_of
from hpsearch.benchmark.suite import Suite, load_suites
from hpsearch.journal.provenance import code_version, command_line, without_folder

Run = Callable[[Suite, BenchmarkTask, RunKey], RunCourse]
"""Carries out one run; the key has the method's name without the peer's."""


def write_peer(description: str | None, peer: str, methods: str, seeds: int, run: Run) -> None:
    """Read the command line, and write a row for each run, after the rows that are in the file already.

    Args:
        description: Of the command.
        peer: Its name, with which the names of methods begin in the file.
        methods: Names of methods, with commas between them; the default of `--methods`.
        seeds: The default of `--seeds`.
        run: Carries out one run.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", default=methods)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    command = without_folder(command_line())
    rows = read_rows([args.out]) if args.out.exists() else []
    present = {(row.family, row.task, row.method, row.workers, row.seed) for row in rows}
    for suite in load_suites(args.suite, args.data):
        for name in suite.tasks:
            task = task_of(suite, name)
            for method in args.methods.split(","):
                for seed in range(args.seeds):
                    key = RunKey(name, f"{peer}_{method}", args.workers, seed)
                    if (suite.name, *key) in present:
                        continue
                    course = run(suite, task, key._replace(method=method))
                    rows.append(run_row(suite, key, replace(course, commit=code_version())))
                    write_rows(args.out, rows, command)
                    print(suite.name, *key, course.trials, file=sys.stderr)


def course_of(task: BenchmarkTask, best: list[tuple[float, float]], trials: int) -> RunCourse:
    """Return a run's result from (full-training equivalents, judged value) of each report that looked best so far."""
    return RunCourse(
        [at for at, _ in best],
        [task.regret(value) for _, value in best],
        [value <= task.threshold for _, value in best],
        trials,
    )
