"""Progress of the search: the best value over the trials, and every trial's learning curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from hpsearch.objective import Metric, values_of
from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.picture import SERIES, Ink
from hpsearch.page.charts.scales import Linear, Log, Marked, scale_of_good
from hpsearch.page.endings import Endings, endings_of, rung_inks
from hpsearch.page.goals import evenly, growth
from hpsearch.page.html import Section, SectionTable
from hpsearch.results.study import Study
from hpsearch.tables.wording import counted, number
from hpsearch.trial import TrialRow, TrialState

_MOST_CURVES = 300
_MOST_POINTS = 60
"""Largest number of points of one curve."""
_MOST_ROWS = 40

_KINDS: dict[str, tuple[Ink, bool]] = {
    "complete": ("text", False),
    "stopped": ("muted", True),
    "not ended": ("s4", True),
    "breaks a constraint": ("bad", True),
}
"""Colour of a trial's dot, and whether it is hollow. Rungs in other pictures have other colours."""


def history(study: Study) -> Section | None:
    """Plot every trial's value in order of start, and the best value so far; with several goals, the hypervolume."""
    objective = study.sweep.objective
    if objective.several:
        return growth(study)
    rows = [row for row in study.trials if row.values and math.isfinite(row.values[0])]
    if not rows:
        return None
    goal, last, best = objective.goals[0], len(study.trials) - 1.0, _best(study)
    summary = _summary(study, rows)
    up, beyond = _scale([row.values[0] for row in rows] + [value for _, value in best], goal.goal == "minimize")
    chart = Chart("Best so far", summary, Linear(-0.5, last + 0.5, is_integer=True), up, ("trial", goal.name))
    for name, (ink, hollow) in _KINDS.items():
        chosen = [row for row in rows if _kind(row) == name]
        for row in chosen:
            tip = f"trial {row.number}: {number(row.values[0])} at iteration {row.value_iteration}"
            chart.dot((float(row.number), row.values[0]), ink, 2.5, hollow, tip)
        if chosen:
            chart.key(ink, name, "ring" if hollow else "dot")
    if best:
        chart.steps(best, "s0", until=last)
        chart.key("s0", "best so far")
    table = [(f"{newest:.0f}", number(value)) for newest, value in best][-_MOST_ROWS:]
    head = ("newest trial", f"best {goal.name}")
    paragraphs = [summary, *_change_lines(best, last), *beyond]
    return Section("How it got there", paragraphs, chart.picture, SectionTable(head, table), folded=True)


def _best(study: Study) -> list[tuple[float, float]]:
    """Return (newest trial, best value) at each change of the best value to a finite value."""
    changes = []
    for moment in study.course().changes:
        values = values_of(moment.front[0]) if moment.front else ()
        changes += [(moment.trials - 1.0, value) for value in values if math.isfinite(value)]
    return changes


def _summary(study: Study, rows: Sequence[TrialRow]) -> str:
    """Describe the values and the best value."""
    values, leader, goal = [row.values[0] for row in rows], study.leaders[0], study.sweep.objective.goals[0]
    summary = f"{counted(len(rows), 'trial')} with {goal.name} from {number(min(values))} to {number(max(values))}; "
    value = f"{number(leader.values[0])}, is trial {leader.number} of {len(study.trials):,}."
    if leader.feasible:
        return f"{summary}the best, {value}"
    broken = " and ".join(study.sweep.objective.broken(leader.score))
    return f"{summary}all break constraints, and the one that breaks {broken} least, {value}"


def _change_lines(best: Sequence[tuple[float, float]], last: float) -> Iterator[str]:
    """Return the description of the line, and the changes after the start of the last trial."""
    if not best:
        yield "A dot is what a trial has in the end."
        return
    yield (
        "A dot is what a trial has in the end; the line is what was known to be best by the time the next trial began."
    )
    former, later = ([value for newest, value in best if (newest < last) is earlier] for earlier in (True, False))
    if former and later:
        yield f"After the last trial had begun it went from {number(former[-1])} to {number(later[-1])}."


def _kind(row: TrialRow) -> str:
    if not row.feasible:
        return "breaks a constraint"
    return str(row.state) if str(row.state) in _KINDS else "not ended"


def curves(study: Study, goals: Sequence[Metric] | None = None) -> list[Section]:
    """Plot the learning curves of each goal, coloured by the trial's last rung.

    Return no sections if no trial has two points.

    Args:
        study: The study.
        goals: Goals to draw; None: all.
    """
    objective = study.sweep.objective
    scores, endings = study.scores(), endings_of(study)
    drawn = []
    for index, goal in enumerate(objective.goals):
        if goals is None or goal in goals:
            values = {
                trial: [(iteration, values_of(score)[index]) for iteration, score in curve]
                for trial, curve in scores.items()
            }
            drawn.append(_curves(study, index, values, endings))
    return [section for section in drawn if section is not None]


def _curves(
    study: Study, index: int, curves: Mapping[int, Sequence[tuple[int, float]]], endings: Endings
) -> Section | None:
    """Plot the learning curves of one goal. Curves of the best trial or of the Pareto front are thicker.

    Args:
        study: The study.
        index: Index of the goal in the sweep.
        curves: (iteration, value) pairs of the goal, by trial.
        endings: Why the trials ended.
    """
    objective = study.sweep.objective
    goal = objective.goals[index]
    rows = {row.number: row for row in study.trials}
    finite = {trial: curve for trial, curve in curves.items() if any(math.isfinite(y) for _, y in curve)}
    if not finite or max(len(curve) for curve in finite.values()) < 2:
        return None
    shown = [row.number for row in study.ranked if row.number in finite][:_MOST_CURVES]
    levels = sorted({rows[trial].iterations for trial in shown})
    shades = _levels(study, levels)
    values = [y for trial in shown for _, y in finite[trial] if math.isfinite(y)]
    up, beyond = _scale(values, goal.goal == "minimize")
    last = max(x for trial in shown for x, _ in finite[trial])
    scale = Log(1, last) if last >= 30 else Linear(1, max(last, 2), is_integer=True)
    across = Marked(scale, (float(last), 1.0, *reversed(shades)))
    thick = {row.number for row in study.leaders}
    summary = _summary_of_curves(shown, finite, rows, study, index)
    title = f"Learning curves: {goal.name}" if objective.several else "Learning curves"
    chart = Chart(title, summary, across, up, ("iteration", goal.name))
    for trial in reversed(shown):
        row = rows[trial]
        ink = SERIES[_shade(row.iterations, shades)]
        tip = f"trial {trial}: {row.state} at {row.iterations}. {endings.why(row)}"
        points = [(float(x), y) for x, y in evenly(finite[trial], _MOST_POINTS)]
        best = trial in thick
        chart.line(points, ink, 3.0 if best else 1.2, faint=not best and len(shown) > 30, tip=tip)
    for step, level in enumerate(shades):
        exact = {iterations for iterations in levels if _shade(iterations, shades) == step} <= {level}
        chart.key(SERIES[step], f"{'' if exact else '<= '}{counted(level, 'iteration')}")
    paragraphs = [summary, *beyond]
    if len(finite) > len(shown):
        paragraphs.append(f"The {len(shown)} best of {len(finite):,} are drawn.")
    table = [
        (str(trial), str(rows[trial].iterations), *_ends(finite[trial]), endings.why(rows[trial]))
        for trial in shown[:_MOST_ROWS]
    ]
    head = ("trial", "iterations", f"first {goal.name}", f"last {goal.name}", "why it ended")
    return Section(title, paragraphs, chart.picture, SectionTable(head, table), folded=True)


def _summary_of_curves(
    shown: Sequence[int],
    finite: Mapping[int, Sequence[tuple[int, float]]],
    rows: Mapping[int, TrialRow],
    study: Study,
    index: int,
) -> str:
    objective = study.sweep.objective
    leaders = [row for row in study.leaders if row.number in finite]
    if objective.several and leaders and leaders[0].feasible:
        goal = objective.goals[index]
        best = min(leaders, key=lambda row: goal.signed(row.values[index])).number
        summary = f"Of the front, whose curves are thicker, trial {best} has the best {goal.name}: it"
    elif leaders:
        best = leaders[0].number
        summary = (
            f"Trial {best}, the best,"
            if leaders[0].feasible
            else f"All break constraints; trial {best}, which does so least,"
        )
    else:
        best = shown[0]
        summary = f"No trial has a value; trial {best}"
        if study.leaders:
            summary = f"Of the trials with a finite curve the best, trial {best},"
    first, last = _ends(finite[best])
    summary += f" went from {first} to {last} at iteration {finite[best][-1][0]}."
    stopped = sum(row.state is TrialState.STOPPED for row in rows.values())
    if stopped:
        summary += f" {counted(stopped, 'trial')} of {len(rows):,} were stopped before their end."
    return summary


def _ends(curve: Sequence[tuple[int, float]]) -> tuple[str, str]:
    return number(curve[0][1]), number(curve[-1][1])


def _levels(study: Study, levels: Sequence[int]) -> list[int]:
    """Group iterations into levels, at most one for each colour: the last rungs, or equal parts."""
    inks = rung_inks(study.rungs)
    ends = {ink: until for until, ink in inks.items() if until is not None}
    if ends and None not in inks and max(ends.values()) >= levels[-1]:
        return list(ends.values())
    return sorted({levels[(index + 1) * (len(levels) - 1) // len(SERIES)] for index in range(len(SERIES))})


def _shade(iterations: int, shades: Sequence[int]) -> int:
    return next((index for index, level in enumerate(shades) if iterations <= level), len(shades) - 1)


def _scale(values: Sequence[float], less_is_better: bool) -> tuple[Linear | Log, list[str]]:
    """Return a scale on which good values are distinguishable, and a note on values beyond the scale."""
    scale, beyond = scale_of_good(values, less_is_better)
    if not beyond:
        return scale, []
    left_out = counted(len(beyond), "value")
    return scale, [f"The scale is that of the good values; on its edge: {left_out}, as far as {number(beyond[-1])}."]
