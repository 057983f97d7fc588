"""Plot of the brackets: the number of trials and the workers per trial in each rung."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hpsearch.events import Finished, Started
from hpsearch.page.charts.chart import Key, legend
from hpsearch.page.charts.picture import Box, Ink, Picture, Shape, Words, width_of
from hpsearch.page.endings import has_rungs, rung_inks, rung_title
from hpsearch.page.html import Section, SectionTable
from hpsearch.results.study import Study
from hpsearch.schedulers.base import RungView
from hpsearch.tables.wording import by_width, counted, up_to

_MOST_BRACKETS = 12
_WIDTH, _LEFT, _ALL = 760.0, 100.0, 620.0
"""Widths in pixels: of the picture, of the part to the left of the rungs, and of all rungs."""
_TRIALS, _WORKERS, _LABEL, _APART = 30.0, 18.0, 18.0, 8.0
"""Heights in pixels: of the bar for the most trials, of the bar for the most workers, of a label, and between rows."""
_SIZE = 11.0
"""Font size of labels, in pixels."""
_LEAST = 2.0
"""Smallest height of a bar, in pixels."""


@dataclass(frozen=True, slots=True)
class _Share:
    """The workers of a trial's segment, and the number of trials that they trained as one computation."""

    workers: int
    lanes: int = 1
    """Number of trials that were trained as one computation, including this trial."""

    @property
    def workers_each(self) -> float:
        """Workers per trial, below 1 if trials share a worker."""
        return self.workers / self.lanes


_Shares = Mapping[tuple[int | None, int | None], Counter[_Share]]
"""Number of trials with each share, by bracket and rung."""


def brackets(study: Study) -> Section | None:
    """Plot the rungs of each bracket: the number of begun trials, and the number of workers per trial."""
    if not has_rungs(study):
        return None
    every, shares = study.rungs, _shares(study)
    numbers = sorted({rung.bracket for rung in every})
    rungs = [rung for rung in every if rung.bracket in numbers[:_MOST_BRACKETS]]
    had = {share for counts in shares.values() for share in counts}
    summary = f"{counted(len(numbers), 'bracket')}, the largest rung with {counted(max(map(_size, every)), 'trial')}."
    paragraphs = ["A trial goes from left to right until it is stopped."]
    is_shown = any(share != _Share(1) for share in had)
    if is_shown:
        summary += _shares_text(had)
        paragraphs.append(
            "The higher a grey bar, the more workers trained a trial at a time, on average, each as many as last in "
            "this rung."
        )
        if any(share.lanes > 1 for share in had):
            paragraphs.append("One of four that a worker trained as one computation had a fourth of it.")
    paragraphs[0] = f"{summary} {paragraphs[0]}"
    if len(numbers) > _MOST_BRACKETS:
        paragraphs.append(f"The first {_MOST_BRACKETS} brackets are drawn, and are in the table.")
    drawn = {(rung.bracket, rung.rung) for rung in rungs} & shares.keys() if is_shown else ()
    ends = {rung.until for rung in rungs}
    inks = {until: ink for until, ink in rung_inks(every).items() if until in ends}
    resource = study.sweep.resource
    picture = _picture(rungs, inks, {rung: shares[rung] for rung in drawn}, summary, resource)
    return Section("Brackets", paragraphs, picture, _table(rungs, shares, had, resource), folded=True)


def _shares(study: Study) -> _Shares:
    """Count the trials of each rung by their last share in the rung.

    The number of trials that were trained as one computation is known when a segment has ended.
    """
    last: defaultdict[tuple[int | None, int | None], dict[int, _Share]] = defaultdict(dict)
    began: dict[tuple[int, int], Started] = {}
    for event in study.events():
        if isinstance(event, Started):
            began[event.segment.trial, event.segment.attempt] = event
            if event.segment.width > 1 or study.sweep.resources.lanes == 1:
                last[event.bracket, event.rung][event.segment.trial] = _Share(event.segment.width)
        elif isinstance(event, Finished) and (start := began.get((event.trial, event.attempt))) is not None:
            last[start.bracket, start.rung][event.trial] = _Share(start.segment.width, event.lanes)
    return {rung: Counter(trials.values()) for rung, trials in last.items()}


def _shares_text(shares: Collection[_Share]) -> str:
    """Format the smallest and the largest share."""
    workers = [share.workers for share in shares]
    least, most, lanes = min(workers), max(workers), max(share.lanes for share in shares)
    text = f" A trial had {counted(most, 'worker') if least == most else f'{least} to {most} workers'}."
    shared = f" Up to {lanes} trials were trained together on a worker."
    return shared if most == 1 else text if lanes == 1 else text + shared


def _table(rungs: Sequence[RungView], shares: _Shares, had: Collection[_Share], resource: str | None) -> SectionTable:
    of_each = [shares.get((rung.bracket, rung.rung), Counter[_Share]()) for rung in rungs]
    columns = [
        ("bracket", [str(rung.bracket) for rung in rungs]),
        ("rung", [rung_title(rung.rung, rung.until, resource) for rung in rungs]),
        ("trials begun", [_started_text(rung) for rung in rungs]),
    ]
    if any(share.lanes > 1 for share in had):
        columns.append(("trained together", [_lanes(counts) for counts in of_each]))
    if any(share.workers > 1 for share in had):
        columns.append(("workers per trial", [_widths(counts) for counts in of_each]))
    columns.append(("finished", [f"{rung.finished:,}" for rung in rungs]))
    head, cells = zip(*columns, strict=True)
    return SectionTable(head, list(zip(*cells, strict=True)))


def _widths(shares: Counter[_Share]) -> str:
    """Format the number of trials by number of workers."""
    counts = Counter[int]()
    for share, count in shares.items():
        counts[share.workers] += count
    return by_width(counts, "trial")


def _lanes(shares: Collection[_Share]) -> str:
    """Format the smallest and the largest number of trials that were trained as one computation."""
    lanes = {share.lanes for share in shares}
    return "" if not lanes else str(*lanes) if len(lanes) == 1 else f"{min(lanes)} to {max(lanes)}"


def _picture(
    rungs: Sequence[RungView],
    inks: Mapping[int | None, Ink],
    shares: _Shares,
    description: str,
    resource: str | None,
) -> Picture:
    """Draw the brackets, with a row for each bracket and a column for each last iteration of rungs.

    Args:
        rungs: Rungs of the brackets to draw.
        inks: Colours by the rungs' last iteration, in order.
        shares: Shares of the trials; empty if each trial had one worker.
        description: Description of the picture, for screen readers.
        resource: What rungs end by; None: iterations.
    """
    keys = [Key("s0", "trials that began in a rung", "box"), Key("muted", "workers per trial", "box")]
    above, top = (legend(keys, _LEFT, _LEFT + _ALL, 18)[0], 62.0) if shares else ([], 40.0)
    row = _TRIALS + _LABEL + (_WORKERS + _LABEL if shares else 0.0) + _APART
    bars = _Bars(inks, max(map(_size, rungs)), shares, max(map(_mean, shares.values()), default=1.0), resource)
    numbers = sorted({rung.bracket for rung in rungs})
    picture = Picture(_WIDTH, top + row * len(numbers) + 4, "Brackets", description)
    picture.draw(*above, *bars.heads(top - 16))
    for line, bracket in enumerate(numbers):
        y = top + row * line
        picture.draw(Words(_LEFT - 14, y + _TRIALS / 2 + 4, f"bracket {bracket}", "end"))
        for rung in (rung for rung in rungs if rung.bracket == bracket):
            picture.draw(*bars.trials(rung, y), *bars.workers(rung, y + _TRIALS + _LABEL))
    return picture


@dataclass(frozen=True)
class _Bars:
    """Draws rungs. All brackets have the same scales for trials and workers."""

    inks: Mapping[int | None, Ink]
    """Colour of each column, by the last iteration of its rungs; None is the key of unbounded rungs."""
    most: int
    """Number of trials in the largest rung."""
    shares: _Shares
    widest: float
    """Largest average number of workers per trial in a rung."""
    resource: str | None

    @property
    def columns(self) -> Sequence[int | None]:
        """Last iteration of each column's rungs, in order."""
        return list(self.inks)

    @property
    def step(self) -> float:
        """Distance between columns, in pixels."""
        return _ALL / len(self.columns)

    @property
    def wide(self) -> float:
        """Width of a bar, in pixels."""
        return self.step - min(4.0, self.step / 4)

    def heads(self, y: float) -> Iterator[Shape]:
        """Draw the columns' labels, the last iterations. Some are left out if they don't all fit."""
        texts = [up_to(until, self.resource) for until in self.columns]
        if max(width_of(text, _SIZE) for text in texts) > self.wide:
            texts = ["the end" if until is None else f"{until:,}" for until in self.columns]
        every = math.ceil((max(width_of(text, _SIZE) for text in texts) + 6) / self.step)
        for index in range(0, len(texts), every):
            yield Words(_LEFT + self.step * (index + 0.5), y, texts[index], "middle", "muted", _SIZE)

    def trials(self, rung: RungView, y: float) -> Iterator[Shape]:
        """Draw the number of trials, centred vertically."""
        column, started = self.columns.index(rung.until), _started_text(rung)
        high = max(_LEAST, _TRIALS * rung.started / max(self.most, 1))
        title = rung_title(rung.rung, rung.until, self.resource)
        tip = f"bracket {rung.bracket}, {title}: {started} begun, {rung.finished:,} finished"
        yield Box(self._x(column), y + (_TRIALS - high) / 2, self.wide, high, self.inks[rung.until], tip)
        count = counted(rung.started, "trial") if started == f"{rung.started:,}" else f"{started} trials"
        yield from self._label(
            column, y + _TRIALS, (f"rung {rung.rung}: {count}", f"rung {rung.rung}: {started}", started)
        )

    def workers(self, rung: RungView, y: float) -> Iterator[Shape]:
        """Draw the average number of workers per trial, upward from the bottom."""
        shares = self.shares.get((rung.bracket, rung.rung))
        if not shares:
            return
        column, mean = self.columns.index(rung.until), _mean(shares)
        high = max(_LEAST, _WORKERS * mean / self.widest)
        shared = "" if all(share.lanes == 1 for share in shares) else f", {_lanes(shares)} on a worker"
        yield Box(self._x(column), y + _WORKERS - high, self.wide, high, "muted", _widths(shares) + shared)
        texts = [f"{mean:.3g} {'worker' if mean == 1 else 'workers'} each", f"{mean:.3g} each", f"{mean:.3g}"]
        if mean < 1:
            texts = [f"{1 / mean:.3g} on a worker", f"1/{1 / mean:.3g} each", f"1/{1 / mean:.3g}"]
        yield from self._label(column, y + _WORKERS, texts)

    def _x(self, column: int) -> float:
        return _LEFT + self.step * column + (self.step - self.wide) / 2

    def _label(self, column: int, y: float, texts: Sequence[str]) -> Iterator[Words]:
        """Draw the first text that fits below a bar, if any. The table has the same numbers."""
        if text := next((text for text in texts if width_of(text, _SIZE) <= self.step), ""):
            yield Words(_LEFT + self.step * (column + 0.5), y + 13, text, "middle", "text", _SIZE)


def _mean(shares: Counter[_Share]) -> float:
    return fmean(share.workers_each for share in shares.elements())


def _size(rung: RungView) -> int:
    return max(rung.started, rung.size or 0)


def _started_text(rung: RungView) -> str:
    size = "" if rung.size is None or rung.size == rung.started else f" of {rung.size:,}"
    return f"{rung.started:,}{size}"
