"""What the parameters did: parallel coordinates, importance, and the front of several goals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hpsearch.charts import Chart, Names, Picture, Scale, scale_of
from hpsearch.charts.picture import Box, Line, Words
from hpsearch.report.importance import importance_of
from hpsearch.report.outline import outline
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study
from hpsearch.report.tables import param_cell
from hpsearch.report.wording import number, shortened
from hpsearch.space import Categorical, LogIntUniform, LogNormal, LogUniform
from hpsearch.trial import Value

__all__ = ["front", "importance", "parallel"]

_MOST_LINES = 300
_MOST_AXES = 10
_MOST_NAMES = 12
_ABSENT = "absent"


def parallel(study: Study) -> Section | None:
    """Draw each trial as a line through its parameters, on the scales of the space, to what it gave."""
    objective, space = study.sweep.objective, study.sweep.parameters
    rows = {row.number: row for row in study.trials if row.values and all(map(math.isfinite, row.values))}
    ranked = [rows[one] for one in objective.rank({number: row.score for number, row in rows.items()})]
    shown = ranked[:_MOST_LINES]
    points = [outline(row.params, space) for row in shown]
    axes = [
        axis
        for name in dict.fromkeys(name for point in points for name in point)
        if (axis := _axis(study, name, points))
    ]
    if len(shown) < 2 or not axes:
        return None
    left_out = [name for name, _, _ in axes[_MOST_AXES:]]
    axes = axes[:_MOST_AXES]
    for place, goal in enumerate(objective.goals):
        values = [row.values[place] for row in shown]
        axes.append((goal.name, scale_of(values), list(values)))
    good = min(max(1, len(ranked) // 10), len(shown))
    told = f"The best {'tenth ' if good == len(ranked) // 10 else ''}({good:,} of {len(ranked):,}) in green: "
    told += f"{_ranges(axes, good)}."
    picture = _drawn(axes, len(shown), good, told)
    words = [told, "A line is a trial; axes have the scales of the search space."]
    if len(ranked) > len(shown):
        words.append(f"The {len(shown)} best of {len(ranked):,} are drawn.")
    if left_out:
        words.append(f"Not drawn for want of room: {', '.join(left_out)}.")
    return Section("Parameters", words, picture)


_Axis = tuple[str, Scale, list[Value]]


def _axis(study: Study, name: str, points: Sequence[dict[str, Value]]) -> _Axis | None:
    """Give an axis with each trial's value on it; None where all are equal, or too many to be told apart."""
    parameter = study.sweep.parameters.find(name)
    values = [point.get(name, _ABSENT) for point in points]
    distribution = None if parameter is None else parameter.distribution
    listed = _texts(distribution.values) if isinstance(distribution, Categorical) else []
    if not 0 < len(listed) <= _MOST_NAMES and all(map(_is_number, values)):
        numbers = [float(value) for value in values]
        log = isinstance(distribution, LogUniform | LogIntUniform | LogNormal)
        return None if min(numbers) == max(numbers) else (name, scale_of(numbers, log), numbers)
    texts = _texts(values)
    names = tuple(dict.fromkeys([*listed, *sorted(set(texts))]))
    return None if len(set(texts)) < 2 or len(names) > _MOST_NAMES else (name, Names(names), list(texts))


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _texts(values: Iterable[Value]) -> list[str]:
    return [value if isinstance(value, str) else param_cell(value) for value in values]


def _ranges(axes: Sequence[_Axis], good: int) -> str:
    parts = []
    for name, scale, values in axes:
        best = values[:good]
        if isinstance(scale, Names):
            parts.append(f"{name} {', '.join(sorted(set(best), key=scale.names.index))}")
        else:
            low, high = number(min(best)), number(max(best))
            parts.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    return "; ".join(parts)


def _drawn(axes: Sequence[_Axis], count: int, good: int, told: str) -> Picture:
    top, bottom, left, right = 40.0, 300.0, 70.0, 700.0
    picture = Picture(760, 330, "Parallel coordinates", told)
    places = [left + (right - left) * place / (len(axes) - 1) for place in range(len(axes))]
    for trial in reversed(range(count)):
        line = [
            (x, bottom - (bottom - top) * scale.share(values[trial]))
            for x, (_, scale, values) in zip(places, axes, strict=True)
        ]
        best = trial < good
        picture.draw(Line(line, "good" if best else "muted", 1.6 if best else 0.8, faint=not best))
    for place, (x, (name, scale, _)) in enumerate(zip(places, axes, strict=True)):
        picture.draw(Line([(x, top), (x, bottom)], "text"))
        picture.draw(Words(x, 24 if place % 2 == 0 else 12, shortened(name, 18), "middle"))
        for value, text in scale.ticks(5):
            y = bottom - (bottom - top) * scale.share(value)
            picture.draw(Line([(x - 3, y), (x + 3, y)], "text"))
            picture.draw(Words(x + 5, y + 4, shortened(text, 14), "start", "text", 10))
    return picture


def importance(study: Study) -> Section | None:
    """Draw how much of the variance each parameter explains."""
    if (found := importance_of(study)) is None:
        return None
    shares, goal = found.shares, study.sweep.objective.goals[0].name
    of_them = f", by {found.fitted} of them" if found.fitted < found.reached else ""
    told = f"By {goal} at iteration {found.iteration}, the last one that {found.reached} trials reached{of_them}: "
    told += ", ".join(f"{name} {share:.0%}" for name, share in list(shares.items())[:3])
    row, left = 24, 180
    picture = Picture(760, 20 + row * len(shares), "Importance", told)
    for place, (name, share) in enumerate(shares.items()):
        y = 10 + row * place
        picture.draw(Words(left - 8, y + 15, shortened(name, 26), "end"))
        picture.draw(Box(left, y + 3, max(1.0, 500 * share), row - 8, "s0", f"{name}: {share:.1%}"))
        picture.draw(Words(left + 500 * share + 8, y + 15, f"{share:.1%}", "start", "muted"))
    words = [
        f"{told}.",
        "Shares of the variance that the parameters explain together, each alone and with others (fANOVA), of those "
        "that all of these trials have. With few trials they are rough.",
    ]
    return Section("What mattered", words, picture)


def front(study: Study) -> Section | None:
    """Draw the first two of several goals over each other."""
    objective = study.sweep.objective
    if not objective.several:
        return None
    rows = [row for row in study.trials if row.values and all(map(math.isfinite, row.values))]
    if not rows:
        return None
    one, other = objective.goals[:2]
    # From the best of the first goal on: a trial's second value can be had wherever the first one may be worse.
    leaders = sorted((row for row in study.leaders if row.feasible), key=lambda row: one.signed(row.values[0]))
    told = f"{len(leaders)} of {len(rows)} trials are on the front: none is better than another in all."
    across, up = (scale_of([row.values[place] for row in rows]) for place in (0, 1))
    chart = Chart("Front", told, across, up, (one.name, other.name))
    best = {row.number for row in leaders}
    for row in rows:
        if row.number not in best:
            chart.dot((row.values[0], row.values[1]), "muted", 2.5, True, f"trial {row.number}")
    if len(objective.goals) == 2:
        chart.steps([(row.values[0], row.values[1]) for row in leaders], "s0", 1.0, dashed=True)
    for row in leaders:
        chart.dot((row.values[0], row.values[1]), "s0", 4, tip=f"trial {row.number}")
    chart.key("s0", "front", dotted=True)
    chart.key("muted", "others", dotted=True, hollow=True)
    head = ("trial", *(goal.name for goal in objective.goals))
    table = [(str(row.number), *map(number, row.values)) for row in leaders]
    words = [told]
    if len(objective.goals) > 2:
        words.append("Of more than two goals the first two are drawn.")
    return Section("Front", words, chart.picture, Table(head, table))
