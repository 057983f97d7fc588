"""Brackets as a picture: trials narrow from rung to rung, and workers per trial grow."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hpsearch.charts import Key, Picture, legend, width_of
from hpsearch.charts.picture import Box, Ink, Shape, Words
from hpsearch.events import Started
from hpsearch.report.page.endings import has_rungs, rung_title
from hpsearch.report.page.inks import rung_inks
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study
from hpsearch.report.wording import by_width, counted, up_to
from hpsearch.schedulers.base import RungView

__all__ = ["brackets"]

_MOST_BRACKETS = 12
_WIDTH, _LEFT, _ALL = 760.0, 100.0, 620.0
"""Pixels of the picture, those left of the rungs, and those that they share."""
_TRIALS, _WORKERS, _LABEL, _APART = 30.0, 18.0, 18.0, 8.0
"""Pixels that the most trials are high, those of the most workers, what a label takes below them, and between rows."""
_SIZE = 11.0
"""Of a label's letters."""
_LEAST = 2.0
"""Pixels that a bar is high at least."""

_Widths = Mapping[tuple[int | None, int | None], Counter[int]]
"""By bracket and rung: how many trials had so many workers."""


def brackets(study: Study) -> Section | None:
    """Draw the rungs of each bracket: how many trials began in each, and on how many workers they ran."""
    if not has_rungs(study):
        return None
    every, widths = study.rungs, _widths(study)
    numbers = sorted({rung.bracket for rung in every})
    rungs = [rung for rung in every if rung.bracket in numbers[:_MOST_BRACKETS]]
    ran_on = [width for counts in widths.values() for width in counts]
    is_wide = any(width != 1 for width in ran_on)
    told = f"{counted(len(numbers), 'bracket')}, the largest rung with {counted(max(map(_size, every)), 'trial')}."
    words = ["A trial goes from left to right until it is stopped."]
    if is_wide:
        least, most = min(ran_on), max(ran_on)
        told += f" A trial had {counted(most, 'worker') if least == most else f'{least} to {most} workers'}."
        words.append(
            "The higher a grey bar, the more workers a trial had on average, each as many as it had last in this rung."
        )
    words[0] = f"{told} {words[0]}"
    if len(numbers) > _MOST_BRACKETS:
        words.append(f"The first {_MOST_BRACKETS} brackets are drawn, and stand in the table.")
    drawn = {(rung.bracket, rung.rung) for rung in rungs} & widths.keys() if is_wide else ()
    ends = {rung.until for rung in rungs}
    inks = {until: ink for until, ink in rung_inks(every).items() if until in ends}
    picture = _picture(rungs, inks, {rung: widths[rung] for rung in drawn}, told)
    return Section("Brackets", words, picture, _table(rungs, widths, is_wide), folded=True)


def _widths(study: Study) -> _Widths:
    """Count the trials of each rung by the workers that they had last there."""
    last: defaultdict[tuple[int | None, int | None], dict[int, int]] = defaultdict(dict)
    for event in study.events():
        if isinstance(event, Started):
            last[event.bracket, event.rung][event.segment.trial] = event.segment.width
    return {rung: Counter(trials.values()) for rung, trials in last.items()}


def _table(rungs: Sequence[RungView], widths: _Widths, is_wide: bool) -> Table:
    columns = [
        ("bracket", [str(rung.bracket) for rung in rungs]),
        ("rung", [rung_title(rung.rung, rung.until) for rung in rungs]),
        ("trials begun", [_begun(rung) for rung in rungs]),
        ("workers per trial", [by_width(widths.get((rung.bracket, rung.rung), {}), "trial") for rung in rungs]),
        ("finished", [f"{rung.finished:,}" for rung in rungs]),
    ]
    head, cells = zip(*(column for column in columns if is_wide or column[0] != "workers per trial"), strict=True)
    return Table(head, list(zip(*cells, strict=True)))


def _picture(rungs: Sequence[RungView], inks: Mapping[int | None, Ink], widths: _Widths, told: str) -> Picture:
    """Draw a row for each bracket, a column for each iteration that rungs end at.

    Args:
        rungs: Of the brackets that are drawn.
        inks: Of the iterations that they end at, in order.
        widths: Of their trials; none where each had one worker.
        told: What is to be seen.
    """
    keys = [Key("s0", "trials that began in a rung", "box"), Key("muted", "workers per trial", "box")]
    above, top = (legend(keys, _LEFT, _LEFT + _ALL, 18)[0], 62.0) if widths else ([], 40.0)
    row = _TRIALS + _LABEL + (_WORKERS + _LABEL if widths else 0.0) + _APART
    bars = _Bars(inks, max(map(_size, rungs)), widths, max(map(_mean, widths.values()), default=1.0))
    numbers = sorted({rung.bracket for rung in rungs})
    picture = Picture(_WIDTH, top + row * len(numbers) + 4, "Brackets", told)
    picture.draw(*above, *bars.heads(top - 16))
    for line, bracket in enumerate(numbers):
        y = top + row * line
        picture.draw(Words(_LEFT - 14, y + _TRIALS / 2 + 4, f"bracket {bracket}", "end"))
        for rung in (rung for rung in rungs if rung.bracket == bracket):
            picture.draw(*bars.trials(rung, y), *bars.workers(rung, y + _TRIALS + _LABEL))
    return picture


@dataclass(frozen=True)
class _Bars:
    """What is drawn of a rung, each kind on one scale in all brackets."""

    inks: Mapping[int | None, Ink]
    """Of each column: the iteration that its rungs end at, None where they have no end, and their colour."""
    most: int
    """Trials of the largest rung."""
    widths: _Widths
    widest: float
    """Workers of a trial on average, in the rung where these are most."""

    @property
    def columns(self) -> Sequence[int | None]:
        """What the columns end at, in order."""
        return list(self.inks)

    @property
    def step(self) -> float:
        """Pixels from one column to the next."""
        return _ALL / len(self.columns)

    @property
    def wide(self) -> float:
        """Pixels of a bar."""
        return self.step - min(4.0, self.step / 4)

    def heads(self, y: float) -> Iterator[Shape]:
        """Say how far each column's trials run; of more than there is room for some."""
        texts = [up_to(until) for until in self.columns]
        if max(width_of(text, _SIZE) for text in texts) > self.wide:
            texts = ["the end" if until is None else f"{until:,}" for until in self.columns]
        every = math.ceil((max(width_of(text, _SIZE) for text in texts) + 6) / self.step)
        for place in range(0, len(texts), every):
            yield Words(_LEFT + self.step * (place + 0.5), y, texts[place], "middle", "muted", _SIZE)

    def trials(self, rung: RungView, y: float) -> Iterator[Shape]:
        """Draw how many trials began, around the middle of their room."""
        place, begun = self.columns.index(rung.until), _begun(rung)
        high = max(_LEAST, _TRIALS * rung.started / max(self.most, 1))
        tip = f"bracket {rung.bracket}, {rung_title(rung.rung, rung.until)}: {begun} begun, {rung.finished:,} finished"
        yield Box(self._left(place), y + (_TRIALS - high) / 2, self.wide, high, self.inks[rung.until], tip)
        count = counted(rung.started, "trial") if begun == f"{rung.started:,}" else f"{begun} trials"
        yield from self._label(place, y + _TRIALS, (f"rung {rung.rung}: {count}", f"rung {rung.rung}: {begun}", begun))

    def workers(self, rung: RungView, y: float) -> Iterator[Shape]:
        """Draw how many workers a trial had on average, from the bottom of their room."""
        counts = self.widths.get((rung.bracket, rung.rung))
        if not counts:
            return
        place, mean = self.columns.index(rung.until), _mean(counts)
        high = max(_LEAST, _WORKERS * mean / self.widest)
        tip = by_width(counts, "trial")
        yield Box(self._left(place), y + _WORKERS - high, self.wide, high, "muted", tip)
        texts = f"{mean:.3g} {'worker' if mean == 1 else 'workers'} each", f"{mean:.3g} each", f"{mean:.3g}"
        yield from self._label(place, y + _WORKERS, texts)

    def _left(self, place: int) -> float:
        return _LEFT + self.step * place + (self.step - self.wide) / 2

    def _label(self, place: int, y: float, texts: Sequence[str]) -> Iterator[Words]:
        """Give the first of some texts that has room below a bar, if any; what it says stands in the table, too."""
        if text := next((text for text in texts if width_of(text, _SIZE) <= self.step), ""):
            yield Words(_LEFT + self.step * (place + 0.5), y + 13, text, "middle", "text", _SIZE)


def _mean(counts: Counter[int]) -> float:
    return fmean(counts.elements())


def _size(rung: RungView) -> int:
    return max(rung.started, rung.size or 0)


def _begun(rung: RungView) -> str:
    size = "" if rung.size is None or rung.size == rung.started else f" of {rung.size:,}"
    return f"{rung.started:,}{size}"
