"""Sections for several goals: the Pareto front, and its hypervolume over the trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TypeVar

from hpsearch.objective import hypervolume
from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.picture import Picture
from hpsearch.page.charts.scales import FAR, Linear, scale_of
from hpsearch.page.html import Section, SectionTable
from hpsearch.page.trials import table_of
from hpsearch.results.best import reference_point
from hpsearch.results.study import Study
from hpsearch.tables.wording import counted, number
from hpsearch.trial import TrialRow

T = TypeVar("T")

_MOST_ROWS = 100
_MOST_CHANGES = 40
_MOST_MEASURED = 200
"""Largest number of changes of the front that are drawn."""
_MOST_STEPS = 30_000_000
"""Largest number of computation steps for hypervolumes, some ten seconds."""


def front(study: Study) -> Section | None:
    """Plot the first two goals, and list the trials of the Pareto front with their parameters."""
    objective = study.sweep.objective
    rows = [row for row in study.trials if row.values]
    if not objective.several or not rows:
        return None
    goal = objective.goals[0]
    # Sorted by the first goal, best first.
    leaders = sorted((row for row in study.leaders if row.feasible), key=lambda row: goal.signed(row.values[0]))
    summary = f"{len(leaders):,} of {len(rows):,} trials are on the front: none is better than another in all."
    if not leaders:
        least = study.leaders[0]
        summary = (
            f"No trial is on the front, as all break constraints; trial {least.number} least: {_broken(study, least)}."
        )
    paragraphs = [summary, *_remarks(study, rows, leaders)]
    picture = _scattered(study, rows, leaders, summary)
    if not leaders:
        return Section("Front", paragraphs, picture)
    table, constants = table_of(study, leaders[:_MOST_ROWS], checkpoints=True)
    return Section("Front", [*paragraphs, *constants], picture, table)


def _remarks(study: Study, rows: Sequence[TrialRow], leaders: Sequence[TrialRow]) -> Iterator[str]:
    """Return notes on the front, and on trials that the picture and the table leave out."""
    goals = study.sweep.objective.goals
    if not all(row.feasible for row in rows):
        yield "What breaks a constraint, in red, is never on it."
    if len(goals) > 2:
        yield "Of more than two goals the first two are drawn."
    if far := sum(any(abs(value) >= FAR for value in row.values[:2]) for row in rows):
        yield f"On an edge, or not drawn where a value is infinite: {counted(far, 'trial')}."
    if len(leaders) > 1:
        weights = ",".join(f"{goal.name}=WEIGHT" for goal in goals)
        yield (
            "Which of these is best depends on what a unit of each goal is worth. To choose by that: "
            f"hpsearch best {shlex.quote(str(study.directory))} --weights {shlex.quote(weights)}"
        )
    if len(leaders) > _MOST_ROWS:
        yield f"The first {_MOST_ROWS} of them by {goals[0].name} are in the table."


def _scattered(study: Study, rows: Sequence[TrialRow], leaders: Sequence[TrialRow], description: str) -> Picture:
    """Draw a dot for each trial, and with two goals the Pareto front as a line."""
    goals = study.sweep.objective.goals
    across, up = (scale_of([row.values[index] for row in rows]) for index in (0, 1))
    chart = Chart("Front", description, across, up, (goals[0].name, goals[1].name))
    best = {row.number for row in leaders}
    dominated = [row for row in rows if row.number not in best]
    for row in dominated:
        tip = f"trial {row.number}" if row.feasible else f"trial {row.number} breaks {_broken(study, row)}"
        chart.dot((row.values[0], row.values[1]), "muted" if row.feasible else "bad", 2.5, True, tip)
    if len(goals) == 2:
        chart.steps([(row.values[0], row.values[1]) for row in leaders], "s0", 1.0, dashed=True)
    for row in leaders:
        chart.dot((row.values[0], row.values[1]), "s0", 4, tip=f"trial {row.number}")
    if leaders:
        chart.key("s0", "front", "dot")
    if any(row.feasible for row in dominated):
        chart.key("muted", "others", "ring")
    if not all(row.feasible for row in dominated):
        chart.key("bad", "breaks a constraint", "ring")
    return chart.picture


def _broken(study: Study, row: TrialRow) -> str:
    return " and ".join(study.sweep.objective.broken(row.score))


def growth(study: Study) -> Section | None:
    """Plot the hypervolume of the front over the trials."""
    objective = study.sweep.objective
    moments = study.course().changes
    if not any(moment.front for moment in moments):
        return None
    size, goals = len(moments[-1].front), len(objective.goals)
    most = min(_MOST_MEASURED, _MOST_STEPS // max(len(moment.front) for moment in moments) ** (goals - 1))
    if most < 2:
        too_long = f"With {goals} goals, measuring its hypervolume would take too long."
        return Section("How it got there", [f"{size:,} trials are on the front. {too_long}"])
    reference = reference_point(objective.goals, {}, [score for moment in moments for score in moment.front])
    grown = [
        (float(moment.trials - 1), hypervolume([objective.point(score) for score in moment.front], reference))
        for moment in evenly(moments, most)
    ]
    count = len(study.trials)
    last = grown[-1][1]
    summary = f"The front's hypervolume is {number(last)} after {counted(count, 'trial')}, with {size} on it."
    chart = Chart(
        "Hypervolume of the front",
        summary,
        Linear(-0.5, max(count - 0.5, 0.5), is_integer=True),
        scale_of([0.0, *(value for _, value in grown)]),
        ("trial", "hypervolume"),
    )
    chart.steps(grown, "s0", until=count - 1.0)
    for point in grown:
        chart.dot(point, "s0", 2.5, tip=f"{number(point[1])} when trial {point[0]:.0f} was the newest")
    chart.key("s0", "hypervolume of the front")
    paragraphs = [summary, _measured(study, reference)]
    if last == 0:
        paragraphs.append("It is 0 as no trial is better than that in every goal.")
    paragraphs.append("The line is what was known by the time the next trial began. More is better.")
    if len(grown) < len(moments):
        paragraphs.append(f"Of {len(moments):,} changes of the front {len(grown)} are drawn.")
    table = [(f"{trial:.0f}", number(value)) for trial, value in grown][-_MOST_CHANGES:]
    return Section(
        "How it got there", paragraphs, chart.picture, SectionTable(("newest trial", "hypervolume"), table), folded=True
    )


def evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most `most` evenly spaced items, including the first and the last.

    Args:
        items: Items in order.
        most: Maximum number of items, at least 2.
    """
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def _measured(study: Study, reference: tuple[float, ...]) -> str:
    """Explain the hypervolume and its reference point."""
    parts = []
    for goal, value in zip(study.sweep.objective.goals, reference, strict=True):
        origin = "the worst that any trial of the front had" if goal.reference is None else "its metric.reference"
        parts.append(f"{goal.name} {number(goal.signed(value))} ({origin})")
    return f"That is how much of the room the front dominates, measured from {', '.join(parts)}."
