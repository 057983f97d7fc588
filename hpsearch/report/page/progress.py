"""How the search went: the best over the trials, and every trial's learning curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpsearch.charts import Chart, Linear, Log, scale_of
from hpsearch.charts.picture import SERIES, Ink
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study
from hpsearch.report.wording import counted, number
from hpsearch.trial import TrialRow, TrialState

__all__ = ["curves", "history"]

_MOST_CURVES = 300
_MOST_POINTS = 60
"""Of one curve."""
_MOST_ROWS = 40
_BEYOND = 4.0
"""Values farther from the best than this many times what three quarters of them span are left to an axis' edge."""

_KINDS: dict[str, tuple[Ink, bool]] = {"complete": ("s2", False), "stopped": ("s1", True), "not ended": ("muted", True)}
"""How a trial's dot is drawn, and whether it is hollow."""


def history(study: Study) -> Section | None:
    """Draw every trial's value in the order of their beginning, and the best so far."""
    objective = study.sweep.objective
    rows = [row for row in study.trials if row.values and all(map(math.isfinite, row.values))]
    if len(objective.goals) != 1 or not rows:
        return None
    goal = objective.goals[0]
    changes = [moment for moment in study.course().changes if moment.front]
    best = [(float(moment.trials), objective.point(moment.front[0])[0]) for moment in changes]
    best = [(trials, goal.signed(value)) for trials, value in best if math.isfinite(value)]
    values = [row.values[0] for row in rows]
    leader = study.leaders[0]
    of_all = f"{counted(len(rows), 'trial')} with {goal.name} from {number(min(values))} to {number(max(values))}"
    told = f"{of_all}; the best, {number(leader.values[0])}, is trial {leader.number} of {len(study.trials):,}."
    up, beyond = _up(values + [value for _, value in best], goal.goal == "minimize")
    count = len(study.trials)
    chart = Chart("Best so far", told, Linear(0, count, whole=True), up, ("trials begun", goal.name))
    for name, (ink, hollow) in _KINDS.items():
        chosen = [row for row in rows if _kind(row) == name]
        for row in chosen:
            tip = f"trial {row.number}: {number(row.values[0])} at iteration {row.value_iteration}"
            chart.dot((row.number + 1.0, row.values[0]), ink, 2.5, hollow, tip)
        if chosen:
            chart.key(ink, name, dotted=True, hollow=hollow)
    chart.steps(best, "s0", until=float(count))
    chart.key("s0", "best so far")
    table = [(f"{trials:.0f}", number(value)) for trials, value in best][-_MOST_ROWS:]
    words = [told, "A dot is what a trial has in the end; the line is what was known to be best by then.", *beyond]
    return Section(
        "How it got there", words, chart.picture, Table(("trials begun", f"best {goal.name}"), table), folded=True
    )


def _kind(row: TrialRow) -> str:
    return str(row.state) if str(row.state) in _KINDS else "not ended"


def curves(study: Study) -> Section | None:
    """Draw the learning curves, coloured by how far the trial came."""
    objective = study.sweep.objective
    if len(objective.goals) != 1:
        return None
    goal = objective.goals[0]
    rows = {row.number: row for row in study.trials}
    known = {trial: curve for trial, curve in study.curves().items() if any(math.isfinite(y) for _, y in curve)}
    if not known or max(len(curve) for curve in known.values()) < 2:
        return None
    ranked = [one for one in objective.rank({number: row.score for number, row in rows.items()}) if one in known]
    shown = ranked[:_MOST_CURVES]
    levels = sorted({rows[trial].iterations for trial in shown})
    shades = _levels(study, levels)
    values = [y for trial in shown for _, y in known[trial] if math.isfinite(y)]
    up, beyond = _up(values, goal.goal == "minimize")
    last = max(x for trial in shown for x, _ in known[trial])
    across = Log(1, last) if last >= 30 else Linear(1, max(last, 2), whole=True)
    told = _told(shown, known, rows, study)
    chart = Chart("Learning curves", told, across, up, ("iteration", goal.name))
    for trial in reversed(shown):
        row = rows[trial]
        ink = SERIES[_shade(row.iterations, shades)]
        tip = f"trial {trial}: {row.state} at {row.iterations}. {row.reason}"
        best = trial == ranked[0]
        points = [(float(x), y) for x, y in _thinned(known[trial])]
        chart.line(points, ink, 3.0 if best else 1.2, faint=not best and len(shown) > 30, tip=tip)
    exact = set(levels) <= set(shades)
    for place, level in enumerate(shades):
        chart.key(SERIES[place], f"{'' if place == 0 or exact else '<= '}{counted(level, 'iteration')}")
    words = [told, *beyond]
    if len(known) > len(shown):
        words.append(f"The {len(shown)} best of {len(known):,} are drawn.")
    table = [
        (str(trial), str(rows[trial].iterations), *_ends(known[trial]), rows[trial].reason)
        for trial in shown[:_MOST_ROWS]
    ]
    head = ("trial", "iterations", f"first {goal.name}", f"last {goal.name}", "why it ended")
    return Section("Learning curves", words, chart.picture, Table(head, table), folded=True)


def _told(
    shown: Sequence[int], known: Mapping[int, Sequence[tuple[int, float]]], rows: Mapping[int, TrialRow], study: Study
) -> str:
    best = shown[0]
    first, last = _ends(known[best])
    stopped = sum(row.state is TrialState.STOPPED for row in rows.values())
    told = f"Trial {best}, the best," if rows[best].values else f"No trial has a value; trial {best}"
    told += f" went from {first} to {last} at iteration {rows[best].iterations}."
    return told + (f" {counted(stopped, 'trial')} of {len(rows):,} were stopped before their end." if stopped else "")


def _ends(curve: Sequence[tuple[int, float]]) -> tuple[str, str]:
    return number(curve[0][1]), number(curve[-1][1])


def _levels(study: Study, levels: Sequence[int]) -> list[int]:
    """Give at most as many levels as there are inks: those of the rungs, or even shares."""
    rungs = sorted({rung.until for rung in study.rungs if rung.until is not None})
    if 0 < len(rungs) <= len(SERIES) and rungs[-1] >= levels[-1]:
        return rungs
    return sorted({levels[(place + 1) * (len(levels) - 1) // len(SERIES)] for place in range(len(SERIES))})


def _shade(iterations: int, shades: Sequence[int]) -> int:
    return next((place for place, level in enumerate(shades) if iterations <= level), len(shades) - 1)


def _thinned(curve: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Give so many points of a curve that a person sees the same, its ends among them."""
    if len(curve) <= _MOST_POINTS:
        return curve
    places = {place * (len(curve) - 1) // (_MOST_POINTS - 1) for place in range(_MOST_POINTS)}
    return [curve[place] for place in sorted(places)]


def _up(values: Sequence[float], less_is_better: bool) -> tuple[Linear | Log, list[str]]:
    """Give a scale on which the good values can be told apart; say what it leaves out.

    A few trials that diverged would else press all others into one line.
    """
    ordered = sorted(values, reverse=not less_is_better)
    span = abs(ordered[(len(ordered) - 1) * 3 // 4] - ordered[0])
    kept = [value for value in ordered if abs(value - ordered[0]) <= _BEYOND * span] if span else ordered
    log = less_is_better and kept[0] > 0 and kept[-1] > 20 * kept[0]
    if len(ordered) == len(kept):
        return scale_of(ordered, log), []
    left_out = counted(len(ordered) - len(kept), "value")
    told = f"The scale is that of the good values; on its edge: {left_out}, as far as {number(ordered[-1])}."
    return scale_of(kept, log), [told]
