"""The raw rows of benchmarks, from which tables are made: one for each run, with its hits and regret. They are CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from hpsearch.benchmark.runs import RunCourse, RunKey, hits_at, regret_at
from hpsearch.benchmark.suite import Suite
from hpsearch.errors import SweepError
from hpsearch.journal.filesystem import writing
from hpsearch.tables.formats import csv_text

Half = Literal["choose", "report"]

Values = Mapping[tuple[str, int], float]
"""(task, seed) to a number of that run of a method."""

_COLUMNS = ("family", "tasks", "half", "task", "method", "workers", "seed", "trials", "commit")
_HITS, _REGRET = "hits_", "regret_"
"""Prefixes of the columns by budget."""


@dataclass(frozen=True)
class RunRow:
    """One run of a method on a task."""

    family: str
    """Name of the suite."""
    tasks: int
    """Number of tasks of the family, in both halves together."""
    half: Half
    """The half of the family's tasks in which this one is."""
    task: str
    method: str
    workers: int
    seed: int
    trials: int
    commit: str
    hits: Mapping[float, float]
    """Budget in full trainings to 1.0, or 0.0 without a hit by then."""
    regret: Mapping[float, float]
    """Budget in full trainings to the regret of the best report by then."""


def half_of(suite: Suite, task: str) -> Half:
    """Return the half in which a task is: every second one is for choosing defaults, the others to report them on."""
    return "report" if suite.tasks.index(task) % 2 else "choose"


def run_row(suite: Suite, key: RunKey, course: RunCourse) -> RunRow:
    """Return the row of a run; `suite` has the tasks of both halves."""
    hits = {budget: hits_at(course, budget) for budget in suite.budgets}
    regret = {budget: round(regret_at(course, budget), 6) for budget in suite.budgets}
    return RunRow(
        suite.name, len(suite.tasks), half_of(suite, key.task), *key, course.trials, course.commit, hits, regret
    )


def runs_of(rows: Iterable[RunRow], method: str, workers: int) -> list[RunRow]:
    """Return the rows of a method."""
    return [row for row in rows if row.method == method and row.workers == workers]


def hits_of(runs: Iterable[RunRow], budget: float | None = None) -> Values:
    """Return the hits of runs by a budget; None: their means over the budgets, by which methods are judged."""
    return {(row.task, row.seed): fmean(row.hits.values()) if budget is None else row.hits[budget] for row in runs}


def regret_of(runs: Iterable[RunRow], budget: float) -> Values:
    """Return the regret of runs at a budget."""
    return {(row.task, row.seed): row.regret[budget] for row in runs}


def write_rows(path: Path, rows: Sequence[RunRow], command: str) -> None:
    """Write rows as CSV, below a comment with the command that they are from.

    Raises:
        StorageError: The file can't be written.
    """
    budgets = sorted({budget for row in rows for budget in row.hits})
    columns = [*_COLUMNS, *(f"{prefix}{budget:.12g}" for prefix in (_HITS, _REGRET) for budget in budgets)]
    cells = [
        [
            *(getattr(row, name) for name in _COLUMNS),
            *(None if budget not in row.hits else int(row.hits[budget]) for budget in budgets),
            *(row.regret.get(budget) for budget in budgets),
        ]
        for row in rows
    ]
    with writing(f"{path}: expected a file that can be written"):
        path.write_text(f"# {command}\n{csv_text(columns, cells)}", "utf-8")


def read_rows(paths: Sequence[Path]) -> list[RunRow]:
    """Read rows that `write_rows` has written, from one or several files.

    Raises:
        SweepError: A file can't be read, lacks a column, or has a run that is in another one, too; or a family's rows
            are of different suites.
    """
    rows: dict[tuple[str, RunKey], RunRow] = {}
    firsts: dict[str, RunRow] = {}
    for path in paths:
        try:
            lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
        except (OSError, UnicodeDecodeError) as error:
            raise SweepError(f"{path}: must be the rows of a benchmark, as rows.csv, got {error}") from error
        for cells in csv.DictReader(lines, restkey=""):
            try:
                row = _row(cells)
            except (ValueError, KeyError, TypeError) as error:
                raise SweepError(
                    f"{path}: must be the rows of a benchmark, as rows.csv, got a row {cells}: {error!r}"
                ) from error
            first = firsts.setdefault(row.family, row)
            if (row.tasks, row.hits.keys()) != (first.tasks, first.hits.keys()):
                raise SweepError(
                    f"{path}: must have rows of the same tasks and budgets for {row.family}, got {row.tasks} tasks "
                    f"with {_budgets(row)}, and {first.tasks} with {_budgets(first)}: they are of different suites"
                )
            key = row.family, RunKey(row.task, row.method, row.workers, row.seed)
            if key in rows:
                raise SweepError(f"{path}: must have each run once, got {' '.join(map(str, (key[0], *key[1])))} again")
            rows[key] = row
    if not rows:
        raise SweepError(f"{', '.join(map(str, paths))}: must be the rows of a benchmark, as rows.csv, got no row")
    return list(rows.values())


def _budgets(row: RunRow) -> str:
    return f"budgets {'/'.join(f'{budget:g}' for budget in row.hits)}"


def _row(cells: Mapping[str, str]) -> RunRow:
    def by_budget(prefix: str) -> dict[float, float]:
        return {
            float(name.removeprefix(prefix)): float(cell)
            for name, cell in cells.items()
            if name.startswith(prefix) and cell
        }

    if cells["half"] not in ("choose", "report"):
        raise ValueError("half must be choose or report")
    half: Half = "choose" if cells["half"] == "choose" else "report"
    hits, regret = by_budget(_HITS), by_budget(_REGRET)
    if not hits or hits.keys() != regret.keys():
        raise ValueError("there must be hits and regret by the same budgets")
    if not set(hits.values()) <= {0.0, 1.0} or any(map(math.isnan, regret.values())):
        raise ValueError("hits must be 0 or 1, and regret a number")
    if "" in cells or None in cells.values():
        raise ValueError("it must have a cell for each column")
    numbers = {name: int(cells[name]) for name in ("tasks", "workers", "seed", "trials")}
    texts = {name: cells[name] for name in ("family", "task", "method", "commit")}
    return RunRow(half=half, hits=hits, regret=regret, **numbers, **texts)  # type: ignore[arg-type]
