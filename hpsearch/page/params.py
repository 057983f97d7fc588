"""Pictures of parameters: their importance, and parallel coordinates of all trials."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpsearch.objective import Metric
from hpsearch.page.charts.chart import Key, legend
from hpsearch.page.charts.picture import Box, Line, Picture, Point, Shape, Words, fitted, width_of
from hpsearch.page.charts.scales import Names, Scale, between, scale_of
from hpsearch.page.html import Section
from hpsearch.results.importance import importance_of
from hpsearch.results.study import Study
from hpsearch.space import Categorical, Distribution, LogIntUniform, LogNormal, LogUniform, Normal, ZeroOrLogUniform
from hpsearch.space.distribution import Numeric
from hpsearch.space.expressions import ABSENT
from hpsearch.space.structures import Copies, RepeatedStructure
from hpsearch.tables.formats import param_cell
from hpsearch.tables.outline import written
from hpsearch.tables.wording import number
from hpsearch.trial import TrialRow, TrialState, Value

_MOST_LINES = 300
_MOST_WITHOUT = 100
"""Largest number of lines for trials without a value."""
_MOST_AXES = 10
_TOP, _BOTTOM, _LEFT, _RIGHT = 40.0, 300.0, 70.0, 700.0
_WIDTH, _HEIGHT = 760.0, 350.0
_STUB = 20.0
"""Length in pixels of the line of a trial without a value, if there is only one parameter axis."""
_SHARES_WIDTH, _LONGEST_NAME = 490.0, 180.0
"""Widths in pixels: of the picture of importances, which fits on a phone, and of the longest name."""


@dataclass(frozen=True)
class _Trials:
    """The trials of a parallel coordinates plot."""

    ranked: Sequence[TrialRow]
    """Trials with a finite value of each goal, best first."""
    without: Sequence[TrialRow]
    """Trials that ended without a value."""

    @property
    def good(self) -> int:
        """Number of drawn trials that count as the best."""
        return min(max(1, len(self.ranked) // 10), len(self.shown))

    @property
    def shown(self) -> Sequence[TrialRow]:
        """Drawn trials with a value."""
        return self.ranked[:_MOST_LINES]

    @property
    def broken(self) -> Sequence[TrialRow]:
        """Drawn trials without a value."""
        return self.without[:_MOST_WITHOUT]

    @property
    def failed(self) -> int:
        """Number of failed trials without a value."""
        return sum(row.state is TrialState.FAILED for row in self.without)


def parallel(study: Study) -> Section | None:
    """Draw parallel coordinates: a line for each trial, through its parameters to its values.

    The axes have the scales of the space.

    The lines of trials that failed, or ended without a finite value, end at the last parameter.
    """
    if not study.sweep.objective.goals:
        return None
    trials = _trials(study)
    points = [_point(row, study) for row in [*trials.shown, *trials.broken]]
    if len(points) < 2:
        return None
    names = [name for name in dict.fromkeys(name for point in points for name in point) if varies(name, points)]
    axes_by_name = {name: axis_of(name, _distribution(study, name), points) for name in names}
    axes_by_name = {name: axis and replace(axis, name=display_name(name, study)) for name, axis in axes_by_name.items()}
    params = [axis for axis in axes_by_name.values() if axis is not None]
    crowded = [name for name, axis in axes_by_name.items() if axis is None]
    lacks = [f"Not drawn, as they have too many values to be told apart: {', '.join(crowded)}."] if crowded else []
    if not params:
        return Section("Parameters", lacks) if lacks else None
    axes = params[:_MOST_AXES]
    if trials.ranked or len(axes) == 1:  # a goal without values has no axis
        axes += _goals(study, trials.shown)
    sentences = _describe(trials, axes)
    scales = "A line is a trial; axes of parameters span the search space, on its scales."
    paragraphs = [*sentences, scales, *_left_out(trials)]
    if more := [axis.name for axis in params[_MOST_AXES:]]:
        paragraphs.append(f"Not drawn because there is no room: {', '.join(more)}.")
    paragraphs += lacks
    picture = Picture(_WIDTH, _HEIGHT, "Parallel coordinates", " ".join(sentences))
    picture.draw(*_lines(axes, trials), *_axes(axes), *legend(_keys(trials), _LEFT, _WIDTH, 340)[0])
    return Section("Parameters", paragraphs, picture)


def _trials(study: Study) -> _Trials:
    valued = [row for row in study.ranked if row.values and all(map(math.isfinite, row.values))]
    numbers = {row.number for row in valued}
    ended = (TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED)
    return _Trials(valued, [row for row in study.trials if row.number not in numbers and row.state in ended])


def _point(row: TrialRow, study: Study) -> dict[str, Value]:
    """Return a trial's params. A structure is replaced by its text, or by the number of its parts."""
    return {
        name: row.params.get(name, written(value)) if is_structure else value
        for name, value, is_structure in study.sweep.parameters.top_level(row.params)
    }


def _distribution(study: Study, name: str) -> Distribution | None:
    parameter = study.sweep.parameters.find(name)
    return None if parameter is None else parameter.distribution


def _goals(study: Study, rows: Sequence[TrialRow]) -> Iterator[Axis]:
    for index, goal in enumerate(study.sweep.objective.goals):
        values = [row.values[index] for row in rows]
        yield Axis(goal.name, scale_of(values), values)


def _describe(trials: _Trials, axes: Sequence[Axis]) -> list[str]:
    """Describe the parameter ranges of the best trials, and how trials without values are drawn."""
    sentences = ["No trial has a finite value."]
    if trials.ranked:
        tenth = "tenth " if trials.good == len(trials.ranked) // 10 else ""
        ranges = "; ".join(range_text(axis, trials.good) for axis in axes)
        sentences = [f"The best {tenth}({trials.good:,} of {len(trials.ranked):,}) in green: {ranges}."]
    if trials.without:
        parts = [f"{trials.failed:,} failed"] if trials.failed else []
        if trials.failed < len(trials.without):
            parts.append(f"{len(trials.without) - trials.failed:,} ended without a finite value")
        sentences.append(f"In red, dashed, as far as the parameters: {' and '.join(parts)}.")
    return sentences


def _left_out(trials: _Trials) -> Iterator[str]:
    if len(trials.ranked) > len(trials.shown):
        yield f"The {len(trials.shown)} best of {len(trials.ranked):,} are drawn."
    if len(trials.without) > len(trials.broken):
        yield f"The first {len(trials.broken)} of {len(trials.without):,} without a value are drawn."


def _lines(axes: Sequence[Axis], trials: _Trials) -> Iterator[Shape]:
    """Draw the trials' lines, the best ones on top. Trials without a value have partial lines."""
    valued = len(trials.shown)
    for trial in reversed(range(trials.good, valued)):
        yield Line(_line(axes, trial), "muted", 0.8, faint=True)
    for trial in range(valued, valued + len(trials.broken)):
        points = _line(axes, trial)
        if len(points) == 1:
            points.append((points[0][0] + _STUB, points[0][1]))
        yield Line(points, "bad", 1, dashed=True)
    for trial in reversed(range(trials.good)):
        yield Line(_line(axes, trial), "good", 1.6)


def _line(axes: Sequence[Axis], trial: int) -> list[Point]:
    placed = zip(_positions(axes), axes, strict=True)
    return [(x, _up(axis, axis.values[trial])) for x, axis in placed if trial < len(axis.values)]


def _axes(axes: Sequence[Axis]) -> Iterator[Shape]:
    positions = _positions(axes)
    apart = positions[1] - positions[0]
    for index, (x, axis) in enumerate(zip(positions, axes, strict=True)):
        yield Line([(x, _TOP), (x, _BOTTOM)], "text")
        # Names alternate between two rows, so each can be as wide as two axes, or twice the distance to the margin.
        room = min(2 * apart, 2 * x, 2 * (_WIDTH - x)) - 6
        yield Words(x, 24 if index % 2 == 0 else 12, fitted(axis.name, room, 12), "middle")
        for value, text in axis.scale.ticks(5):
            y = _up(axis, value)
            yield Line([(x - 3, y), (x + 3, y)], "text")
            yield Words(x + 5, y + 4, fitted(text, min(apart, _WIDTH - x) - 8, 10), "start", "text", 10, halo=True)


def _positions(axes: Sequence[Axis]) -> list[float]:
    return [_LEFT + (_RIGHT - _LEFT) * index / (len(axes) - 1) for index in range(len(axes))]


def _up(axis: Axis, value: object) -> float:
    fraction = min(max(axis.scale.fraction(value), 0.0), 1.0)  # immense values of a goal are beyond its axis
    return _BOTTOM - (_BOTTOM - _TOP) * fraction


def _keys(trials: _Trials) -> list[Key]:
    keys = [Key("good", "the best")] if trials.good else []
    if trials.good < len(trials.shown):
        keys.append(Key("muted", "others"))
    if trials.without:
        is_failed = trials.failed == len(trials.without)
        keys.append(Key("bad", "failed" if is_failed else "failed, or without a finite value", "dashed"))
    return keys


def importance(study: Study, goals: Sequence[Metric] | None = None) -> list[Section]:
    """Plot the share of each goal's variance that each parameter explains, or show why it is unknown.

    Args:
        study: The study.
        goals: Goals to draw; None: all.
    """
    objective = study.sweep.objective
    several = objective.several
    return [
        _importance(study, index, f"What mattered: {goal.name}" if several else "What mattered")
        for index, goal in enumerate(objective.goals)
        if goals is None or goal in goals
    ]


def _importance(study: Study, index: int, title: str) -> Section:
    importances, goal = importance_of(study, index), study.sweep.objective.goals[index].name
    if importances.missing:
        return Section(title, [importances.missing])
    shares = importances.shares
    of_them = f", by {importances.fitted} of them" if importances.fitted < importances.reached else ""
    reached = f"the last one that {importances.reached} trials reached{of_them}"
    summary = f"By {goal} at iteration {importances.iteration}, {reached}: "
    summary += ", ".join(f"{display_name(name, study)} {share:.0%}" for name, share in list(shares.items())[:3])
    row = 24
    names = {name: fitted(display_name(name, study), _LONGEST_NAME, 12) for name in shares}
    left = 28 + max(width_of(text, 12) for text in names.values())
    all_of_it = _SHARES_WIDTH - left - 60
    picture = Picture(_SHARES_WIDTH, 20 + row * len(shares), title, summary)
    for line, (name, share) in enumerate(shares.items()):
        y = 10 + row * line
        picture.draw(Words(left - 8, y + 15, names[name], "end"))
        picture.draw(
            Box(left, y + 3, max(1.0, all_of_it * share), row - 8, "s0", f"{display_name(name, study)}: {share:.1%}")
        )
        picture.draw(Words(left + all_of_it * share + 8, y + 15, f"{share:.1%}", "start", "muted"))
    paragraphs = [
        f"{summary}.",
        "Shares of the variance that the parameters explain together, each alone and with others (fANOVA), of those "
        "that all of these trials have. With few trials they are rough.",
    ]
    return Section(title, paragraphs, picture)


_MOST_NAMES = 12
_DEVIATIONS = 3.0
"""Half-width of an axis for an unbounded distribution, in sigmas."""
_FOOT = 0.15
"""Fraction of a numeric axis that is reserved for each position below its scale."""
_NEAR = 0.06
"""Smallest distance of a mark from an end's mark, as a fraction of the axis. Nearer marks would overlap."""


@dataclass(frozen=True)
class _Span:
    """A numeric axis over the parameter's range, with positions below it for values that aren't on its scale."""

    scale: Scale
    low: float
    high: float
    below: Sequence[str]
    """Labels of the positions from the lowest on: of trials without a value, and of 0 on a logarithmic scale."""

    def fraction(self, value: object) -> float:
        foot = _FOOT * len(self.below)
        if value in self.below:
            return _FOOT * self.below.index(str(value))
        fraction = min(max(self.scale.fraction(value), 0.0), 1.0)
        return foot + (1 - foot) * fraction

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return both ends, and marks between them that don't overlap."""
        ends: list[tuple[object, str]] = [(end, number(end)) for end in dict.fromkeys((self.low, self.high))]
        marks = self.scale.ticks(most)
        inside = [(value, text) for value, text in marks if _NEAR < self.scale.fraction(value) < 1 - _NEAR]
        if len(ends) == 1:
            inside = []  # the only value is in the middle of the axis
        return [*ends, *inside, *((label, label) for label in self.below)]


@dataclass(frozen=True)
class Axis:
    """An axis of the plot."""

    name: str
    scale: Scale
    values: Sequence[float | str]
    """Value of each trial. On a goal's axis, only trials with a value are included."""


def varies(name: str, points: Sequence[Mapping[str, Value]]) -> bool:
    """Return whether trials differ in a parameter, even in the last digit or the type."""
    return len({_exactly(point.get(name, ABSENT)) for point in points}) > 1


def display_name(name: str, study: Study) -> str:
    """Return a parameter's label. For a repeated structure it says `(count)`, as the value is the number of parts."""
    parameter = study.sweep.parameters.find(name)
    is_count = parameter is not None and isinstance(parameter.holder, RepeatedStructure)
    return f"{name} (count)" if is_count else name


def axis_of(name: str, distribution: Distribution | None, points: Sequence[Mapping[str, Value]]) -> Axis | None:
    """Return an axis with each trial's value on it; None if there are too many categories.

    Args:
        name: The parameter's name.
        distribution: Its distribution; None: unknown.
        points: The params of each trial, which may lack this one.
    """
    values = [point.get(name, ABSENT) for point in points]
    listed = distribution.values if isinstance(distribution, Categorical) else ()
    numeric = [float(value) for value in values if _is_number(value)]
    has_absent = ABSENT in values
    if not 0 < len(listed) <= _MOST_NAMES and len(numeric) + values.count(ABSENT) == len(values):
        is_apart = isinstance(distribution, ZeroOrLogUniform) and 0 in numeric
        below = [*(["absent"] if has_absent else []), *(["0"] if is_apart else [])]
        span = _span(distribution, [value for value in numeric if value or not is_apart], below)
        labels = ["0" if value == 0 and is_apart else "" if _is_number(value) else "absent" for value in values]
        return Axis(name, span, [label or float(value) for label, value in zip(labels, values, strict=True)])
    unlisted = sorted({_exactly(value): value for value in values}.items())
    every = {_exactly(value): value for value in listed} | dict(unlisted)
    if len(every) > _MOST_NAMES:
        return None
    texts = dict(zip(every, _apart(list(every.values())), strict=True))
    return Axis(name, Names(tuple(texts.values())), [texts[_exactly(value)] for value in values])


def range_text(axis: Axis, best: int) -> str:
    """Describe the range or the values of the best trials on an axis."""
    values = axis.values[:best]
    if isinstance(axis.scale, Names):
        return f"{axis.name} {', '.join(sorted(set(map(str, values)), key=axis.scale.names.index))}"
    numbers = [value for value in values if not isinstance(value, str)]
    ranges = [_range(min(numbers), max(numbers))] if numbers else []
    others = sorted({value for value in values if isinstance(value, str)})
    return f"{axis.name} {' or '.join([*ranges, *others])}"


def _span(distribution: Distribution | None, values: Sequence[float], below: Sequence[str]) -> _Span:
    """Return an axis over the distribution's range, or over the sampled values if the range is unbounded."""
    ends = [*values, *(float(end) for end in _ends(distribution) if _is_number(end))]
    low, high = min(ends), max(ends)
    log = isinstance(distribution, LogUniform | ZeroOrLogUniform | LogIntUniform | LogNormal)
    is_integer = isinstance(distribution, Numeric) and distribution.is_integer
    return _Span(between(low, high, log, is_integer), low, high, below)


def _ends(distribution: Distribution | None) -> Sequence[Value]:
    match distribution:
        case Normal() | LogNormal():
            return [distribution.at_deviations(sigmas) for sigmas in (-_DEVIATIONS, _DEVIATIONS)]
        case Copies():
            return [distribution.min]  # other numbers are possible
        case ZeroOrLogUniform():
            return list(distribution.positive.ends)
        case Numeric():
            return list(distribution.ends)
        case Categorical():
            return list(distribution.values)
    return []


def _is_number(value: Value) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _exactly(value: Value) -> str:
    """Return a text that differs for different values, also for 1, 1.0, "1" and true."""
    return "" if value is ABSENT else json.dumps(value)


def _apart(values: Sequence[Value]) -> list[str]:
    """Return a readable text for each value. Different values that would look the same are shown as JSON."""
    texts = ["absent" if value is ABSENT else param_cell(value) for value in values]
    return [
        text if texts.count(text) == 1 else "(absent)" if value is ABSENT else _exactly(value)
        for value, text in zip(values, texts, strict=True)
    ]


def _range(least: float, greatest: float) -> str:
    low, high = number(least), number(greatest)
    return low if low == high else f"{low} to {high}"
