"""All data of one trial, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpsearch.decision import Decision
from hpsearch.events import Finished, Started
from hpsearch.objective import values_of
from hpsearch.results.segments import SegmentRow
from hpsearch.results.study import Study
from hpsearch.results.trial_logs import last_lines, logs_of
from hpsearch.tables.layout import Screen, cut_to, one_line
from hpsearch.tables.trials import segments_to_table
from hpsearch.tables.wording import counted, duration, number
from hpsearch.trial import Score, TrialRow, TrialState

_WIDTH = 80
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a rung: the worst promoted trial."""

    bracket: int
    rung: int
    trials: int
    """Number of trials that ended this rung so far, without failed trials."""
    promoted: int
    """Number of these trials that were promoted."""
    last: int | None
    """Number of the worst promoted trial; None if none was promoted."""
    value: float | None
    """Value of that trial at the end of this rung."""


@dataclass(frozen=True)
class TrialPage:
    """Data of a trial's page."""

    study: Study
    row: TrialRow
    segments: Sequence[SegmentRow]
    decisions: Sequence[Decision]
    """The scheduler's decisions on the trial, in order."""
    curves: dict[str, list[tuple[int, float]]]
    """(iteration, value) pairs of each metric of the objective."""
    cut: Cut | None
    """Cut of the trial's last finished rung; None with several goals, or without rungs."""
    log: Path | None
    """Log file of the last attempt that has output; None if there is none."""
    checkpoint: Path | None


def trial_page(study: Study, trial: int) -> TrialPage:
    """Collect a trial's data.

    Raises:
        HpsearchError: There is no such trial.
    """
    row, goals = study.row(trial), study.sweep.objective.goals
    logs = [log for log in logs_of(study.directory, trial) if log.rank == 0]
    with study.entries_in_memory():
        scores = study.scores()
        curve = [(at, values_of(score)) for at, score in scores.get(trial, ())]
        return TrialPage(
            study,
            row,
            [segment for segment in study.segments() if segment.trial == trial],
            [made for entry in study.entries() for made in entry.followed.decisions if made.trial == trial],
            {goal.name: [(at, values[index]) for at, values in curve] for index, goal in enumerate(goals)},
            None if len(goals) != 1 else _cut(study, trial, scores),
            logs[-1].path if logs else None,
            study.checkpoint_path(row),
        )


def _cut(study: Study, trial: int, scores: Mapping[int, Sequence[tuple[int, Score]]]) -> Cut | None:
    """Return the cut of the last rung that a trial finished."""
    objective = study.sweep.objective
    started: dict[int, dict[tuple[int, int], int | None]] = {}
    """By trial: the rungs that it began, each with the last iteration there."""
    began: dict[int, Started] = {}
    for event in study.events():
        if isinstance(event, Started):
            # A trial that trains on after its end runs again in its last rung.
            started.setdefault(event.segment.trial, {}).setdefault((event.bracket, event.rung), event.segment.end)
            began[event.segment.trial] = event
        elif isinstance(event, Finished) and not event.cut and began[event.trial].segment.costs is not None:
            started[event.trial][began[event.trial].bracket, began[event.trial].rung] = event.iteration
    if not started.get(trial):
        return None
    bracket, rung = max(started[trial])
    at_rung: dict[int, Score | None] = {}
    promoted = []
    for row in study.trials:
        rungs = started.get(row.number, {})
        until = rungs.get((bracket, rung))
        if (
            until is None
            or row.state is TrialState.FAILED
            or not any(at >= until for at, _ in scores.get(row.number, ()))
        ):
            continue
        best: Score | None = None
        for at, score in scores[row.number]:
            if at <= until and objective.replaces(score, best):
                best = score
        at_rung[row.number] = best
        if (bracket, rung + 1) in rungs:
            promoted.append(row.number)
    if trial not in at_rung:
        return None
    last = objective.rank({number: at_rung[number] for number in promoted})[-1] if promoted else None
    value = None if last is None else at_rung[last]
    return Cut(bracket, rung, len(at_rung), len(promoted), last, None if value is None else values_of(value)[0])


def page_record(page: TrialPage, log_lines: int) -> dict[str, Any]:
    """Return a trial's page as JSON values."""
    row, study = page.row, page.study
    names = [goal.name for goal in study.sweep.objective.goals]
    value: dict[str, Any] = (
        {"value": row.value} if len(names) == 1 else {"values": dict(zip(names, row.values, strict=False))}
    )
    return {
        "trial": row.number,
        "state": row.state.value,
        "iterations": row.iterations,
        **value,
        "value_iteration": row.value_iteration,
        "params": study.sweep.parameters.nest(row.params),
        "metrics": dict(row.metrics),
        "origin": row.origin,
        **({} if row.repeated is None else {"repeated": asdict(row.repeated)}),
        **({"notes": dict(sorted(row.notes.items()))} if row.notes else {}),
        "parent": row.parent,
        "inherited": row.inherited,
        "reason": row.reason or None,
        "cut": None if page.cut is None else asdict(page.cut),
        "decisions": [{"action": decision.action, "reason": decision.reason} for decision in page.decisions],
        "failure": None if row.failure is None else asdict(row.failure),
        "reverted": row.reverted or None,
        "asynchronous": row.asynchronous,
        "segments": [asdict(segment) for segment in page.segments],
        "seconds": row.seconds,
        "curves": {name: [list(point) for point in curve] for name, curve in page.curves.items()},
        "checkpoint": None if page.checkpoint is None else str(page.checkpoint),
        "log": None if page.log is None else str(page.log),
        "log_end": [] if page.log is None else last_lines(page.log, log_lines),
    }


def page_lines(page: TrialPage, pasted: str, log_lines: int, screen: Screen) -> Iterator[str]:
    """Return a trial's page as lines of text. `pasted` is the study's directory, quoted for a shell."""
    row, study = page.row, page.study
    yield f"trial       {row.number} of {study.directory}"
    yield f"state       {_state(page)}"
    if page.cut is not None and row.state is TrialState.STOPPED:
        yield from _told_cut(page.cut, study.sweep.objective.goals[0].name)
    yield from (f"{name:<11} {text}" for name, text in origin_facts(row))
    names = [goal.name for goal in study.sweep.objective.goals]
    for name, reached in zip(names, row.values, strict=False):
        yield f"{name:<11} {reached!r} after iteration {row.value_iteration}"
    yield "params"
    for name, value in study.sweep.parameters.nest(row.params).items():
        yield f"  {name:<20} {value!r}"
    if row.metrics:
        yield f"reported    at iteration {row.iterations}"
        yield from (f"  {name:<20} {last!r}" for name, last in row.metrics.items())
    if row.notes:
        yield "notes"
        yield from (f"  {one_line(name):<20} {one_line(text)}" for name, text in sorted(row.notes.items()))
    yield f"ran         {counted(row.iterations, 'iteration')} in {duration(row.seconds)}"
    yield segments_to_table(page.segments, screen, "with --format json").strip("\n")
    yield from _curves(page, screen)
    if len(page.decisions) > 1:
        yield "decisions"
        yield from (f"  {decision.action:<9} {one_line(decision.reason)}" for decision in page.decisions)
    if row.failure is not None:
        yield f"failure     {row.failure.kind}: {one_line(row.failure.message)}"
        yield from (f"            | {line}" for line in row.failure.traceback.strip().splitlines())
    yield f"checkpoint  {page.checkpoint or 'none: none was saved with its value, or it was deleted'}"
    yield from _log(page, log_lines, screen)
    more = [f"hpsearch logs {pasted} {row.number}", f"hpsearch show {pasted} {row.number}"]
    if row.parent is not None:
        more.append(f"hpsearch lineage {pasted} {row.number}")
    yield from (f"{head:<11} {command}" for head, command in zip(("more", "", ""), more, strict=False))


def origin_facts(row: TrialRow) -> Iterator[tuple[str, str]]:
    """Return (name, text) pairs on where a trial came from, and whether it can be repeated."""
    if row.reverted:
        yield "taken back", one_line(row.reverted)
    if row.repeated is not None:
        yield "repeats", f"configuration {row.repeated.configuration}, as its repeat {row.repeated.repeat}"
    if row.asynchronous:
        yield "repeats", "never: its workers didn't wait for each other"
    if row.parent is not None:
        at = "" if row.inherited is None else f" at iteration {row.inherited}"
        yield "forked", f"from trial {row.parent}{at}"
    yield "origin", row.origin


def _state(page: TrialPage) -> str:
    row = page.row
    if row.state is TrialState.FAILED:
        return "failed"
    return f"{row.state}: {one_line(row.reason)}" if row.reason else row.state.value


def _told_cut(cut: Cut, metric: str) -> Iterator[str]:
    if cut.last is not None and cut.value is not None:
        yield (
            f"            of {counted(cut.trials, 'trial')} in rung {cut.rung} of bracket {cut.bracket}, "
            f"{cut.promoted:,} went on; the last of these, trial {cut.last}, had {metric} {number(cut.value)} there"
        )


def _curves(page: TrialPage, screen: Screen) -> Iterator[str]:
    width = min(screen.width or _WIDTH, _WIDTH)
    for name, curve in page.curves.items():
        lines = curve_lines(curve, width, _HEIGHT, screen.draws) if len(curve) > 1 else []
        if not lines:
            continue
        odd = sum(not math.isfinite(value) for _, value in curve)
        yield ""
        yield name + (f", without {counted(odd, 'report')} that are no finite numbers" if odd else "")
        yield from lines
        yield ""


def _log(page: TrialPage, count: int, screen: Screen) -> Iterator[str]:
    if page.log is None:
        yield "log         none: it printed nothing"
        return
    yield f"log         {page.log}"
    room = (screen.width or 10_000) - 14
    yield from (f"            | {cut_to(one_line(line), room, screen.draws)}" for line in last_lines(page.log, count))


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a Braille character, by row and column."""

_EMPTY = 0x2800


def curve_lines(points: Sequence[tuple[int, float]], width: int, height: int, draws: bool = True) -> list[str]:
    """Draw a curve, with its largest and smallest values at the left and its iterations below.

    Args:
        points: (iteration, value) pairs, by iteration; non-finite values are skipped.
        width: Total width in columns.
        height: Number of lines of the curve.
        draws: Whether Braille characters are available.
    """
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    labels = {0: number(high), height - 1: number(low)} if high > low else {height - 1: number(low)}
    margin = max(map(len, labels.values()))
    across, down = (2, 4) if draws else (1, 1)
    columns = max(4, width - margin - 3)
    first, last = finite[0][0], finite[-1][0]
    dots: set[tuple[int, int]] = set()
    former: tuple[int, int] | None = None
    for at, value in finite:
        x = _scaled(at, first, last, columns * across - 1)
        y = _scaled(value, high, low, height * down - 1) if high > low else height * down - 1
        dots.update(_line(former or (x, y), (x, y)))
        former = x, y
    wall, floor, corner = ("│", "─", "└") if draws else ("|", "-", "+")
    lines = [
        f"{labels.get(row, ''):>{margin}} {wall}{_row(dots, row, columns, draws)}".rstrip() for row in range(height)
    ]
    end = f" iteration {last}".rjust(columns - len(str(first)))
    ends = f"{first}{end}" if last > first else f"iteration {first}"
    return [*lines, f"{'':>{margin}} {corner}{floor * columns}", f"{'':>{margin}}  {ends}"]


def _scaled(value: float, least: float, greatest: float, most: int) -> int:
    return 0 if greatest == least else round((value / 2 - least / 2) / (greatest / 2 - least / 2) * most)


def _line(start: tuple[int, int], end: tuple[int, int]) -> set[tuple[int, int]]:
    """Return the dots on a line between two dots."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    (x, y), (to_x, to_y) = start, end
    return {(round(x + (to_x - x) * step / steps), round(y + (to_y - y) * step / steps)) for step in range(steps + 1)}


def _row(dots: set[tuple[int, int]], row: int, columns: int, draws: bool) -> str:
    if not draws:
        return "".join("*" if (column, row) in dots else " " for column in range(columns))
    letters = []
    for column in range(columns):
        bits = sum(_DOTS[y][x] for y in range(4) for x in range(2) if (column * 2 + x, row * 4 + y) in dots)
        letters.append(chr(_EMPTY + bits) if bits else " ")
    return "".join(letters)
