"""The timeline of the workers."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpsearch.events import Ended, Failed, Finished, Lost, Opened, Reverted, Started, Steered
from hpsearch.page.charts.chart import ROW, Key, legend
from hpsearch.page.charts.picture import Box, Ink, Line, Picture, Words
from hpsearch.page.charts.scales import Linear
from hpsearch.page.endings import has_rungs, rung_inks
from hpsearch.page.html import Section
from hpsearch.results.study import Study
from hpsearch.tables.wording import counted, duration, up_to

_MOST_LANES = 64
_MOST_BOXES = 4000
_HEARD = 0.5
"""Longest delay until a trial's end is journaled, in seconds."""
_BAD = ("failed", "lost")
_UNITS = (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")
_LEAST_UNITS = 5.0
"""A unit is used for durations of at least this many units."""


@dataclass(frozen=True, slots=True)
class _Busy:
    """A segment on one worker."""

    trial: int
    began: float
    ended: float
    kind: str
    until: int | None
    """Last iteration of the segment's rung; None if there is none, or if it is unknown."""


def workers(study: Study, now: float | None = None) -> Section | None:
    """Plot the segments over time. The journal doesn't record the worker, so rows are filled from the first one on.

    Args:
        study: The study.
        now: Time until which running segments are drawn, in seconds since the epoch; None: that of the last event.
    """
    if study.is_told:
        return None
    inks = rung_inks(study.rungs) if has_rungs(study) else {}
    segments, spans = _segments(study, now)
    if not segments or not spans:
        return None
    of_worker, count = study.sweep.resources.lanes, max(workers for *_, workers in spans)
    lanes = _lanes(segments, count * of_worker)
    count = max(math.ceil(len(lanes) / of_worker), count)
    busy = sum(_busy_seconds(segments, *span) for span in spans)
    there = sum((ended - began) * workers for began, ended, workers in spans)
    idle = max(0.0, there - busy)
    idle_share = f"{idle / there:.0%}" if there else "none"
    summary = f"{counted(count, 'worker')}: idle for {duration(idle)} of {duration(there)} ({idle_share})."
    shown = lanes[:_MOST_LANES]
    first, last = spans[0][0], max(spans[-1][1], max(segment.ended for segment in segments))
    first_start = min(segment.began for segment in segments)
    is_late = first_start - first > (last - first) / 2
    first = first_start if is_late else first
    second, unit = _unit(last - first)
    across = Linear(0.0, max(last - first, 1e-9) / second)
    row, left, wide = (20 if len(shown) <= 24 else 10), 60, 680
    keys = _keys(segments, inks, study.sweep.resource)
    above, rows = legend(keys, left, left + wide, 16)
    top = 14 + ROW * rows
    bottom = top + row * len(shown)
    picture = Picture(760, bottom + 46, "Workers", summary)
    picture.draw(*above)
    for value, text in across.ticks(8):
        x = left + wide * across.fraction(value)
        picture.draw(Line([(x, top), (x, bottom)], "grid"))
        picture.draw(Words(x, bottom + 16, text, "middle", "muted", 11))
    beginning = "first trial" if is_late else "first process"
    picture.draw(Words(left + wide / 2, bottom + 36, f"{unit} since the {beginning} began", "middle"))
    rows_are = "worker" if len(lanes) <= count else "trials at once"
    picture.draw(Words(14, (top + bottom) / 2, rows_are, "middle", upright=True))
    every = math.ceil(sum(map(len, shown)) / _MOST_BOXES)
    for index, lane in enumerate(shown):
        y = top + row * index
        if row > 10 or index % 8 == 0:
            picture.draw(Words(left - 8, y + row / 2 + 4, str(index), "end", "muted", 11))
        for segment in lane[::every]:
            x = left + wide * (segment.began - first) / second / across.high
            width = wide * (segment.ended - segment.began) / second / across.high
            ink = "bad" if segment.kind in _BAD else inks.get(segment.until, "s0")
            rung = f" ({up_to(segment.until, study.sweep.resource)})" if inks else ""
            tip = f"trial {segment.trial}{rung}, {segment.kind}, {duration(segment.ended - segment.began)}"
            gap = min(1.0, width / 4)  # separates segments
            picture.draw(Box(x, y + 2, max(width - gap, 0.6), row - 4, ink, tip))
    starting = sum(_before_the_first(segments, *span) for span in spans)
    if starting > 0.05 * there:
        summary += (
            f" Of that, {duration(starting)} passed before the first trial began: workers were started meanwhile."
        )
    paragraphs = [summary, f"A bar is a segment of a trial{', in the colour of its rung' if inks else ''}."]
    if is_late:
        paragraphs.append("Drawn is what came after that: it is less than half of the time.")
    if any(segment.kind in _BAD for segment in segments):
        paragraphs.append("Red are segments that failed, or were lost.")
    if len(lanes) > count:
        paragraphs.append(f"Rows are trials beside each other: up to {of_worker} on each worker.")
    if len(lanes) > len(shown):
        paragraphs.append(f"The first {len(shown)} are drawn.")
    if every > 1:
        paragraphs.append(f"Of every {every} segments one is drawn.")
    return Section("Workers", paragraphs, picture)


def _unit(seconds: float) -> tuple[float, str]:
    """Return the unit for a duration, as (seconds, name)."""
    return next((unit for unit in _UNITS if seconds >= _LEAST_UNITS * unit[0]), _UNITS[-1])


def _keys(segments: Sequence[_Busy], inks: Mapping[int | None, Ink], resource: str | None) -> list[Key]:
    """Return the legend; empty if there is only one colour."""
    untils = {segment.until for segment in segments if segment.kind not in _BAD}
    keys = [Key(ink, up_to(until, resource), "box") for until, ink in inks.items() if until in untils]
    bad = [kind for kind in _BAD if any(segment.kind == kind for segment in segments)]
    return [*keys, *([Key("bad", " or ".join(bad), "box")] if bad else [])]


def _segments(study: Study, now: float | None) -> tuple[list[_Busy], list[tuple[float, float, int]]]:
    """Return every segment on each of its workers, and the number of workers over time, which is 0 while paused."""
    segments: list[_Busy] = []
    spans: list[tuple[float, float, int]] = []
    running: dict[tuple[int, int], tuple[float, int, int | None]] = {}
    untils = {(rung.bracket, rung.rung): rung.until for rung in study.rungs}
    opened: tuple[float, int] | None = None
    there = 0
    is_paused = False
    last = 0.0

    def end_span(when: float) -> None:
        nonlocal opened
        if opened is not None:
            spans.append((opened[0], when, opened[1]))
        opened = None

    def close(when: float) -> None:
        for (trial, _), (began, width, until) in running.items():
            segments.extend([_Busy(trial, began, when, "interrupted", until)] * width)
        running.clear()
        end_span(when)

    for entry in study.entries():
        when = entry.time
        match event := entry.event:
            case Opened(workers=workers):
                close(last)
                opened, there, is_paused = (when, workers or 0), workers or 0, False
            case Started(segment=segment, bracket=bracket, rung=rung):
                until = untils.get((bracket, rung))
                running[segment.trial, segment.attempt] = when, segment.width, until
            case Finished() | Failed() | Lost() | Reverted():
                began, width, until = running.pop((event.trial, event.attempt), (when, 0, None))
                kind = {Failed: "failed", Lost: "lost", Reverted: "taken back"}.get(type(event), "finished")
                segments.extend([_Busy(event.trial, began, when, kind, until)] * width)
            case Steered(request=None):  # a command applied it while no process ran the study
                close(last)
            case Steered(verb="pause" | "resume" as verb, refused=""):
                is_paused = verb == "pause"
                opened = opened or (when, there)
            case Ended():
                close(when)
        if is_paused and not running:
            end_span(when)  # workers of a paused study aren't idle
        last = when
    close(last if now is None else max(last, now))
    most = math.ceil(_most_at_once(segments) / study.sweep.resources.lanes)
    return segments, [(began, ended, workers or most) for began, ended, workers in spans if ended > began]


def _before_the_first(segments: list[_Busy], began: float, ended: float, workers: int) -> float:
    """Return the workers' idle seconds before the first segment."""
    first = min((segment.began for segment in segments if began <= segment.began < ended), default=began)
    return (first - began) * workers


def _busy_seconds(segments: list[_Busy], began: float, ended: float, workers: int) -> float:
    """Return the total busy seconds of workers, if trials are spread evenly over all workers."""
    seconds, last, running = 0.0, began, 0
    for when, change in [*_changes(segments), (ended, 0)]:
        here = min(max(when, began), ended)
        seconds += (here - last) * min(running, workers)
        last, running = here, running + change
    return seconds


def _most_at_once(segments: list[_Busy]) -> int:
    return max(itertools.accumulate(change for _, change in _changes(segments)), default=0)


def _changes(segments: list[_Busy]) -> list[tuple[float, int]]:
    """Return (time, change) pairs of the number of running segments, by time."""
    return sorted([(segment.began, 1) for segment in segments] + [(segment.ended, -1) for segment in segments])


def _lanes(segments: list[_Busy], most: int) -> list[list[_Busy]]:
    """Assign segments to rows. There are as many rows as segments that ran in parallel.

    A worker of a wide trial may begin its next segment some milliseconds before the last segment's end is journaled.

    Args:
        segments: Segments of all trials.
        most: Known number of workers. Above it, no row is added if a worker is about to be free.
    """
    lanes: list[list[_Busy]] = []
    free: list[int] = []
    ends: list[tuple[float, int]] = []
    for segment in sorted(segments, key=lambda segment: (segment.began, segment.ended)):
        while ends and ends[0][0] <= segment.began:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            lane = heapq.heappop(free)
        elif len(lanes) >= most and ends[0][0] - segment.began <= _HEARD:
            lane = heapq.heappop(ends)[1]
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(segment)
        heapq.heappush(ends, (segment.ended, lane))
    return lanes
