"""A comparison of studies for people, as text, and for programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hpsearch.report.comparison import AXES, Comparison, Difference, Run, Side
from hpsearch.report.layout import Column, table_text
from hpsearch.report.outline import outline
from hpsearch.report.tables import csv_text, param_cell, strict_json
from hpsearch.report.wording import counted, duration, number
from hpsearch.trial import Value

__all__ = ["comparison_json", "comparison_text", "courses_csv"]

_MOST_NAMED = 8


def comparison_text(compared: Comparison) -> str:
    """Give the whole comparison: what it cost, the best over the course, the best params, the differences.

    Of several studies on a side each value is their median, with the quartiles.
    """
    parts = [_sides(compared), _costs(compared), _courses(compared)]
    if not compared.objective.several:
        parts.append(_params(compared))
    parts += [_settings(compared), _differences(compared)]
    return "\n".join(part for part in parts if part)


def _title(compared: Comparison) -> str:
    objective = compared.objective
    if compared.reference is None:
        return objective.aim
    signed = zip(objective.goals, compared.reference, strict=True)
    point = ", ".join(f"{goal.name} {number(goal.signed(value))}" for goal, value in signed)
    return f"{objective.aim}: hypervolume from {point}"


def _sides(compared: Comparison) -> str:
    lines = [_title(compared)]
    for side in compared.sides:
        named = ", ".join(str(run.study.directory) for run in side.runs[:_MOST_NAMED])
        more = f" and {len(side.runs) - _MOST_NAMED} more" if len(side.runs) > _MOST_NAMED else ""
        seeds = f"{len(side.runs)} studies: " if len(side.runs) > 1 else ""
        lines.append(f"  {side.label}: {seeds}{named}{more}" if side.label != named else f"  {named}")
        unfinished = [run for run in side.runs if run.study.state != "finished"]
        lines += [f"    {run.study.directory} is {run.study.state}" for run in unfinished]
    return "".join(f"{line}\n" for line in lines)


def _costs(compared: Comparison) -> str:
    rows = [("best", [_spread(side, [run.value for run in side.runs]) for side in compared.sides])]
    costs: Sequence[tuple[str, Callable[[Run], float], Callable[[float], str]]] = (
        ("trials", lambda run: run.course.end.trials, number),
        ("iterations", lambda run: run.course.end.iterations, number),
        ("time", lambda run: run.course.end.seconds, duration),
        ("time in workers", lambda run: run.worker_seconds, duration),
    )
    for name, cost, told in costs:
        rows.append((name, [told(statistics.median(map(cost, side.runs))) for side in compared.sides]))
    return _beside(compared, "", rows)


def _courses(compared: Comparison) -> str:
    rows = []
    for axis in AXES:
        for amount in compared.amounts(axis):
            told = duration(amount) if axis == "seconds" else counted(int(amount), axis.removesuffix("s"))
            rows.append((told, [_spread(side, [run.at(axis, amount) for run in side.runs]) for side in compared.sides]))
    return _beside(compared, "best after", rows)


def _params(compared: Comparison) -> str:
    """Show the best trial of each side, what differs marked."""
    bests = [side.best_run for side in compared.sides]
    points = [_point(run) for run in bests]
    names = list(dict.fromkeys(name for point in points for name in point))
    rows = [("trial", [_trial(side, run) for side, run in zip(compared.sides, bests, strict=True)])]
    for name in names:
        cells = [param_cell(point[name]) if name in point else "-" for point in points]
        rows.append((name if len(set(cells)) == 1 else f"* {name}", cells))
    return _beside(compared, "best trial", rows)


def _trial(side: Side, run: Run) -> str:
    if run.best is None:
        return "none"
    return str(run.best.number) + (f" (seed {run.seed})" if len(side.runs) > 1 else "")


def _point(run: Run) -> dict[str, Value]:
    return {} if run.best is None else outline(run.best.params, run.study.sweep.parameters)


def _settings(compared: Comparison) -> str:
    """Show in which keys the sweeps differ from the first one's."""
    first, lines = compared.sides[0].label, []
    for side in compared.sides[1:]:
        pairs = compared.differing(side).items()
        lines += [f"  {key}: {one} in {first}, {other} in {side.label}" for key, (one, other) in pairs]
    return "".join(f"{line}\n" for line in ["sweeps differ in", *lines]) if lines else ""


def _differences(compared: Comparison) -> str:
    if len(compared.sides) < 2:
        return "One side: these studies differ in their seed alone.\n"
    lines = [f"better than {compared.sides[0].label} by (mean, 95 % interval)"]
    lines += [f"  {_difference(one)}" for one in compared.differences]
    return "".join(f"{line}\n" for line in lines)


def _difference(one: Difference) -> str:
    when = "as they stand" if one.by is None or one.amount is None else f"after {_cost(one.by, one.amount)}"
    if one.mean is None:
        return f"{one.side}, {when}: unknown, as a study has no value there"
    told = f"{one.side}, {when}: {one.mean:+.4g}"
    if one.interval is None:
        return f"{told}; a side of one study says nothing of chance: run both with more seeds"
    told += f" [{one.interval[0]:+.4g}, {one.interval[1]:+.4g}]"
    told += f", {one.pairs} seeds paired" if one.pairs else ", seeds not paired"
    return told if one.p_value is None else f"{told}, Wilcoxon p = {one.p_value:.2g}"


def _cost(axis: str, amount: float) -> str:
    return duration(amount) if axis == "seconds" else counted(int(amount), axis.removesuffix("s"))


def _spread(side: Side, values: Sequence[float | None]) -> str:
    found = side.spread(values)
    if len(values) == 1 or (found.median, found.low, found.high) == (None, None, None):
        return _shown(found.median)
    ends = (found.high, found.low) if not side.more_is_better else (found.low, found.high)
    return f"{_shown(found.median)} [{_shown(ends[0])}, {_shown(ends[1])}]"


def _shown(value: float | None) -> str:
    return "none" if value is None else number(value)


def _beside(compared: Comparison, head: str, rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    columns = [Column(head, [name for name, _ in rows], is_text=True)]
    columns += [Column(side.label, [cells[place] for _, cells in rows]) for place, side in enumerate(compared.sides)]
    return table_text(columns).strip("\n") + "\n"


def courses_csv(compared: Comparison) -> str:
    """Give a line for each change of each study's best: what it had cost, and the value."""
    names = ("side", "directory", "seed", "trials", "iterations", "seconds", "value")
    return csv_text(names, _course_rows(compared))


def _course_rows(compared: Comparison) -> Iterable[Sequence[Value]]:
    for side in compared.sides:
        for run in side.runs:
            for moment, value in zip(run.course.changes, run.values, strict=True):
                cost = moment.trials, moment.iterations, moment.seconds
                yield side.label, str(run.study.directory), run.seed, *cost, None if math.isnan(value) else value


def comparison_json(compared: Comparison) -> dict[str, Any]:
    """Give all of it as JSON."""
    goals = [{"name": goal.name, "goal": goal.goal} for goal in compared.objective.goals]
    told = {
        "goals": goals,
        "sides": [_side_json(compared, side) for side in compared.sides],
        "differences": [asdict(one) for one in compared.differences],
    }
    found: dict[str, Any] = strict_json(told)
    return found


def _side_json(compared: Comparison, side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "differs": {key: {"first": one, "here": other} for key, (one, other) in compared.differing(side).items()},
        "best": asdict(side.spread([run.value for run in side.runs])),
        "after": [
            {axis: amount, **asdict(side.spread([run.at(axis, amount) for run in side.runs]))}
            for axis in AXES
            for amount in compared.amounts(axis)
        ],
        "studies": [_run_json(run) for run in side.runs],
    }


def _run_json(run: Run) -> dict[str, Any]:
    end = run.course.end
    return {
        "directory": str(run.study.directory),
        "seed": run.seed,
        "state": run.study.state,
        "value": run.value,
        "best_trial": None if run.best is None else run.best.number,
        "params": None if run.best is None else dict(run.best.params),
        "trials": end.trials,
        "iterations": end.iterations,
        "seconds": end.seconds,
        "worker_seconds": run.worker_seconds,
    }
