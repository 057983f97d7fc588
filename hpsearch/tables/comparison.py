"""A comparison of studies, as text, CSV and JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from hpsearch.results.comparison import AXES, ComparedRun, Comparison, Side, SideDifference
from hpsearch.tables.formats import csv_text, param_cell, strict_json
from hpsearch.tables.layout import Column, table_text
from hpsearch.tables.outline import outline
from hpsearch.tables.wording import counted, duration, first_of, number
from hpsearch.trial import Value

Rows = Sequence[tuple[str, Sequence[str]]]
"""Lines of a table: the label of each line, and a cell for each side."""


def comparison_text(compared: Comparison) -> str:
    """Return the whole comparison: costs, the best value at equal cost, the best params, and the differences.

    If a side has several studies, each value is their median, with the quartiles.
    """
    head = "".join(f"{line}\n" for line in [comparison_title(compared), *side_lines(compared)])
    parts = [
        head,
        _beside(compared, "", cost_rows(compared)),
        _beside(compared, "best after", equal_cost_rows(compared)),
    ]
    if not compared.objective.several:
        parts.append(_beside(compared, "best trial", param_rows(compared)))
    parts += [_settings(compared), _differences(compared)]
    return "\n".join(part for part in parts if part)


def comparison_title(compared: Comparison) -> str:
    """Describe the objective, and with several goals the hypervolume's reference point."""
    point = _reference(compared)
    if point is None:
        return compared.objective.aim
    values = ", ".join(f"{name} {number(value)}" for name, value in point.items())
    return f"{compared.objective.aim}: hypervolume from {values}"


def _reference(compared: Comparison) -> dict[str, float] | None:
    """Return the hypervolume's reference point, with the original signs of the metrics."""
    if compared.reference is None:
        return None
    signed = zip(compared.objective.goals, compared.reference, strict=True)
    return {goal.name: goal.signed(value) for goal, value in signed}


def side_lines(compared: Comparison) -> list[str]:
    """Return lines with the studies of each side, and with the unfinished studies."""
    lines = []
    for side in compared.sides:
        named = _named(side.runs)
        seeds = f"{len(side.runs)} studies: " if len(side.runs) > 1 else ""
        lines.append(f"  {side.label}: {seeds}{named}" if side.label != named else f"  {named}")
        unfinished = [run for run in side.runs if run.study.state != "finished"]
        lines += [f"    {run.study.directory} is {run.study.state}" for run in unfinished]
    return lines


def cost_rows(compared: Comparison) -> Rows:
    """Return the best value and its cost; medians if a side has several runs."""
    rows = [("best", [_spread(side, [run.value for run in side.runs]) for side in compared.sides])]
    costs: Sequence[tuple[str, Callable[[ComparedRun], float], Callable[[float], str]]] = (
        ("trials", lambda run: run.course.end.trials, number),
        ("iterations", lambda run: run.course.end.iterations, number),
        ("time to start", lambda run: run.course.end.starting, duration),
        ("time from then on", lambda run: run.course.end.seconds, duration),
        ("time in workers", lambda run: run.worker_seconds, duration),
    )
    for name, cost, format_cost in costs:
        rows.append((name, [format_cost(statistics.median(map(cost, side.runs))) for side in compared.sides]))
    return rows


def equal_cost_rows(compared: Comparison) -> Rows:
    """Return the best values at equal cost."""
    rows = []
    for axis in AXES:
        for amount in compared.amounts(axis):
            rows.append(
                (
                    amount_text(axis, amount),
                    [_spread(side, [run.at(axis, amount) for run in side.runs]) for side in compared.sides],
                )
            )
    return rows


def param_rows(compared: Comparison) -> Rows:
    """Return the params of each side's best trial. Differing params are marked with `*`."""
    bests = [side.best_run for side in compared.sides]
    points = [_point(run) for run in bests]
    names = list(dict.fromkeys(name for point in points for name in point))
    rows = [("trial", [_trial(side, run) for side, run in zip(compared.sides, bests, strict=True)])]
    for name in names:
        values = [json.dumps(point[name]) if name in point else None for point in points]  # 1, 1.0 and true differ
        cells = [param_cell(point[name]) if name in point else "-" for point in points]
        rows.append((name if len(set(values)) == 1 else f"* {name}", cells))
    return rows


def _trial(side: Side, run: ComparedRun) -> str:
    if run.best is None:
        return "none"
    return str(run.best.number) + (f" (seed {run.seed})" if len(side.runs) > 1 else "")


def _point(run: ComparedRun) -> dict[str, Value]:
    return {} if run.best is None else outline(run.best.params, run.study.sweep.parameters)


def setting_rows(compared: Comparison) -> list[tuple[str, str, str, str]]:
    """Return the keys in which sweeps differ from the first sweep: (side, key, first side's value, side's value)."""
    return [
        (side.label, key, first, here)
        for side in compared.sides[1:]
        for key, (first, here) in compared.differing(side).items()
    ]


def _settings(compared: Comparison) -> str:
    first = compared.sides[0].label
    lines = [f"  {key}: {former} in {first}, {other} in {side}" for side, key, former, other in setting_rows(compared)]
    return "".join(f"{line}\n" for line in ["sweeps differ in", *lines]) if lines else ""


def _differences(compared: Comparison) -> str:
    if len(compared.sides) < 2:
        alone = len(compared.runs) < 2
        return "" if alone else "One side: these studies differ in their seed alone.\n"
    lines = [f"better than {compared.sides[0].label} by (mean, 95 % interval)"]
    lines += [f"  {_difference(difference)}" for difference in compared.differences]
    return "".join(f"{line}\n" for line in [*lines, *(f"  {pairing}" for pairing in pairing_lines(compared))])


def pairing_lines(compared: Comparison) -> list[str]:
    """Return notes on seeds that the differences leave out, and on seeds that several studies share."""
    lines = []
    for side in compared.sides[1:]:
        left_out = next((item.left_out for item in compared.differences if item.side == side.label), ())
        seeds = [_seeds(item, left_out) for item in (compared.sides[0], side) if {*item.runs} & {*left_out}]
        if seeds:
            lines.append(f"{side.label}, left out, as the other side has no such seed: {' and '.join(seeds)}")
    return lines + [seeds for seeds in map(_repeated, compared.sides) if seeds]


def _seeds(side: Side, left_out: Sequence[ComparedRun]) -> str:
    seeds = sorted({run.seed for run in side.runs if run in left_out})
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))} of {side.label}"


def _repeated(side: Side) -> str:
    """Return a note on seeds that several studies of a side share; empty if there are none."""
    seeds = Counter(run.seed for run in side.runs)
    repeated = ", ".join(f"{count} with seed {seed}" for seed, count in seeds.items() if count > 1)
    return f"{side.label}: studies with the same seed count as one, by their mean: {repeated}" if repeated else ""


def difference_time(difference: SideDifference) -> str:
    """Describe when the sides are compared: at their ends, or at equal cost."""
    axis, amount = difference.by, difference.amount
    return "as they stand" if axis is None or amount is None else f"after {amount_text(axis, amount)}"


def difference_unknown(difference: SideDifference) -> str:
    """Return why a difference has no mean."""
    return f"unknown, as there is no value to reckon with in {_named(difference.without, 3)}"


def _difference(difference: SideDifference) -> str:
    when = difference_time(difference)
    if difference.mean is None:
        return f"{difference.side}, {when}: {difference_unknown(difference)}"
    text = f"{difference.side}, {when}: {difference.mean:+.4g}"
    if difference.interval is None:
        return f"{text}; a side with one seed says nothing of chance: run both with more seeds"
    text += f" [{difference.interval[0]:+.4g}, {difference.interval[1]:+.4g}]"
    text += f", {difference.pairs} seeds paired" if difference.pairs else ", seeds not paired"
    return text if difference.p_value is None else f"{text}, Wilcoxon p = {difference.p_value:.2g}"


def amount_text(axis: str, amount: float) -> str:
    """Format the cost of a search: `40 trials`, `12 s`."""
    if axis == "seconds":
        return duration(amount) if amount >= 1 else f"{number(amount, 2)} s"
    return counted(int(amount), axis.removesuffix("s"))


def _named(runs: Sequence[ComparedRun], most: int = 8) -> str:
    return first_of([run.study.directory for run in runs], most)


def _spread(side: Side, values: Sequence[float | None]) -> str:
    spread = side.spread(values)
    if len(values) == 1 or (spread.median, spread.low, spread.high) == (None, None, None):
        return _shown(spread.median)
    return f"{_shown(spread.median)} [{_shown(spread.low)}, {_shown(spread.high)}]"


def _shown(value: float | None) -> str:
    return "none" if value is None else number(value)


def _beside(compared: Comparison, head: str, rows: Rows) -> str:
    columns = [Column(head, [name for name, _ in rows], is_text=True)]
    columns += [Column(side.label, [cells[index] for _, cells in rows]) for index, side in enumerate(compared.sides)]
    return table_text(columns).strip("\n") + "\n"


def courses_csv(compared: Comparison) -> str:
    """Return the courses as CSV: one line for each change of a study's best value, with the cost so far."""
    names = ("side", "directory", "seed", "trials", "iterations", "seconds", "value")
    return csv_text(names, _course_rows(compared))


def _course_rows(compared: Comparison) -> Iterable[Sequence[Value]]:
    for side in compared.sides:
        for run in side.runs:
            for moment, value in zip(run.course.changes, run.values, strict=True):
                cost = moment.trials, moment.iterations, moment.seconds
                yield side.label, str(run.study.directory), run.seed, *cost, None if math.isnan(value) else value


def comparison_json(compared: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    record = {
        "goals": [{"name": goal.name, "goal": goal.goal} for goal in compared.objective.goals],
        "reference": _reference(compared),
        "sides": [_side_json(compared, side) for side in compared.sides],
        "differences": [_difference_json(difference) for difference in compared.differences],
    }
    plain: dict[str, Any] = strict_json(record)
    return plain


def _side_json(compared: Comparison, side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "differs": {key: {"first": first, "here": here} for key, (first, here) in compared.differing(side).items()},
        "best": asdict(side.spread([run.value for run in side.runs])),
        "after": [
            {axis: amount, **asdict(side.spread([run.at(axis, amount) for run in side.runs]))}
            for axis in AXES
            for amount in compared.amounts(axis)
        ],
        "studies": [_run_json(run) for run in side.runs],
    }


def _difference_json(difference: SideDifference) -> dict[str, Any]:
    shown = {field.name: getattr(difference, field.name) for field in fields(difference)}
    named = {"left_out": difference.left_out, "without": difference.without}
    return shown | {
        name: [{"directory": str(run.study.directory), "seed": run.seed} for run in runs]
        for name, runs in named.items()
    }


def _run_json(run: ComparedRun) -> dict[str, Any]:
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
        "starting_seconds": end.starting,
        "seconds": end.seconds,
        "worker_seconds": run.worker_seconds,
    }
