"""Where the time went: brackets that narrow, and what the workers did."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from hpsearch.charts import Linear, Picture
from hpsearch.charts.picture import SERIES, Box, Line, Words
from hpsearch.events import Ended, Failed, Finished, Lost, Opened, Reverted, Started, Steered
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study
from hpsearch.report.wording import counted, duration, up_to

__all__ = ["brackets", "workers"]

_MOST_BRACKETS = 12
_MOST_LANES = 64
_MOST_BOXES = 4000


def brackets(study: Study) -> Section | None:
    """Draw the rungs of each bracket: how many trials began in each, and on how many workers they ran."""
    rungs = study.rungs
    if not rungs or all(rung.rung == 0 for rung in rungs):
        return None
    widths: defaultdict[tuple[int | None, int | None], dict[int, int]] = defaultdict(dict)
    for event in study.events():
        if isinstance(event, Started):
            widths[event.bracket, event.rung][event.segment.trial] = event.segment.width  # its last one there
    every = sorted({rung.bracket for rung in rungs})
    shown = every[:_MOST_BRACKETS]
    most = max(max(rung.started, rung.size or 0) for rung in rungs)
    levels = sorted({rung.until for rung in rungs if rung.until is not None})
    row, left, wide = 46, 100, 620
    told = f"{counted(len(every), 'bracket')}, the largest rung with {counted(most, 'trial')}."
    picture = Picture(760, 60 + row * len(shown), "Brackets", told)
    step = wide / max(len(levels), 1)
    for place, level in enumerate(levels):
        picture.draw(Words(left + step * (place + 0.5), 24, up_to(level).removeprefix("to "), "middle", "muted", 11))
    table = []
    for line, bracket in enumerate(shown):
        middle = 56 + row * line
        picture.draw(Words(left - 14, middle + 4, f"bracket {bracket}", "end"))
        for rung in (rung for rung in rungs if rung.bracket == bracket):
            place = levels.index(rung.until) if rung.until in levels else 0
            height = max(2.0, (row - 16) * rung.started / most)
            mean = fmean(widths[rung.bracket, rung.rung].values() or [1])
            size = "" if rung.size is None or rung.size == rung.started else f" of {rung.size:,}"
            told_width = f", {mean:.3g} workers each" if mean > 1 else ""
            count = f"{rung.started:,}{size}{told_width}"
            x = left + step * place
            tip = f"rung {rung.rung}, {up_to(rung.until)}: {count}; {rung.finished:,} finished"
            picture.draw(Box(x + 2, middle - height / 2, step - 4, height, SERIES[place % len(SERIES)], tip))
            picture.draw(Words(x + step / 2, middle + (row - 16) / 2 + 12, count, "middle", "text", 11))
            table.append((str(bracket), str(rung.rung), up_to(rung.until), count, f"{rung.finished:,}"))
    words = [told + " A trial goes from left to right as long as it is among the best of its rung."]
    if len(every) > len(shown):
        words.append(f"The first {len(shown)} brackets are drawn, and stand in the table.")
    head = ("bracket", "rung", "runs", "trials begun", "finished")
    return Section("Brackets", words, picture, Table(head, table), folded=True)


@dataclass(frozen=True, slots=True)
class _Busy:
    """A segment on one of its workers."""

    trial: int
    began: float
    ended: float
    kind: str


def workers(study: Study) -> Section | None:
    """Draw what ran when. Which worker it was isn't recorded: lanes are filled from the first one on."""
    if study.is_told:
        return None
    segments, spans = _segments(study)
    if not segments or not spans:
        return None
    lanes, of_worker = _lanes(segments), study.sweep.resources.lanes
    count = max(math.ceil(len(lanes) / of_worker), max((workers for *_, workers in spans), default=0))
    busy = sum(_busy_seconds(segments, *span) for span in spans)
    there = sum((ended - began) * workers for began, ended, workers in spans)
    idle = max(0.0, there - busy)
    share = f"{idle / there:.0%}" if there else "none"
    told = f"{counted(count, 'worker')}: idle for {duration(idle)} of {duration(there)} ({share})."
    shown = lanes[:_MOST_LANES]
    first, last = spans[0][0], max(spans[-1][1], max(one.ended for one in segments))
    across = Linear(0.0, max(last - first, 1e-9))
    row, left, wide = (20 if len(shown) <= 24 else 10), 60, 680
    picture = Picture(760, 50 + row * len(shown), "Workers", told)
    for value, text in across.ticks(8):
        x = left + wide * across.share(value)
        picture.draw(Line([(x, 20), (x, 20 + row * len(shown))], "grid"))
        picture.draw(Words(x, 36 + row * len(shown), f"{text} s", "middle", "muted", 11))
    every = math.ceil(sum(map(len, shown)) / _MOST_BOXES)
    for place, lane in enumerate(shown):
        y = 20 + row * place
        if row > 10 or place % 8 == 0:
            picture.draw(Words(left - 8, y + row / 2 + 4, str(place), "end", "muted", 11))
        for one in lane[::every]:
            x, width = left + wide * (one.began - first) / across.high, wide * (one.ended - one.began) / across.high
            ink = "bad" if one.kind in ("failed", "lost") else SERIES[one.trial % 4]
            tip = f"trial {one.trial}, {one.kind}, {duration(one.ended - one.began)}"
            picture.draw(Box(x, y + 2, max(width, 0.6), row - 4, ink, tip))
    starting = sum(_before_the_first(segments, *span) for span in spans)
    if starting > 0.05 * there:
        told += f" Of that, {duration(starting)} passed before the first trial began: workers were started meanwhile."
    words = [
        told,
        "Colours part one trial from the next; red are segments that failed, or were lost with their worker.",
    ]
    if len(lanes) > count:
        words.append(f"Rows are trials beside each other: up to {of_worker} on each worker.")
    if len(lanes) > len(shown):
        words.append(f"The first {len(shown)} are drawn.")
    if every > 1:
        words.append(f"Of every {every} segments one is drawn.")
    return Section("Workers", words, picture)


def _segments(study: Study) -> tuple[list[_Busy], list[tuple[float, float, int]]]:
    """Give every segment on each of its workers, and when there were how many workers; none while it is paused."""
    found: list[_Busy] = []
    spans: list[tuple[float, float, int]] = []
    running: dict[tuple[int, int], tuple[float, int]] = {}
    opened: tuple[float, int] | None = None
    there = 0
    is_paused = False
    last = 0.0

    def rest(when: float) -> None:
        nonlocal opened
        if opened is not None:
            spans.append((opened[0], when, opened[1]))
        opened = None

    def close(when: float) -> None:
        for (trial, _), (began, width) in running.items():
            found.extend([_Busy(trial, began, when, "interrupted")] * width)
        running.clear()
        rest(when)

    for entry in study.entries():
        when = entry.time
        match event := entry.event:
            case Opened(workers=workers):
                close(last)
                opened, there, is_paused = (when, workers or 0), workers or 0, False
            case Started(segment=segment):
                running[segment.trial, segment.attempt] = when, segment.width
            case Finished() | Failed() | Lost() | Reverted():
                began, width = running.pop((event.trial, event.attempt), (when, 0))
                kind = {Failed: "failed", Lost: "lost", Reverted: "taken back"}.get(type(event), "finished")
                found.extend([_Busy(event.trial, began, when, kind)] * width)
            case Steered(request=None):  # by a command, when no process ran the study any more
                close(last)
            case Steered(verb="pause" | "resume" as verb, refused=""):
                is_paused = verb == "pause"
                opened = opened or (when, there)
            case Ended():
                close(when)
        if is_paused and not running:
            rest(when)  # nobody is idle who isn't asked to work
        last = when
    close(last)
    most = math.ceil(_most_at_once(found) / study.sweep.resources.lanes)
    return found, [(began, ended, workers or most) for began, ended, workers in spans if ended > began]


def _before_the_first(segments: list[_Busy], began: float, ended: float, workers: int) -> float:
    """Give the workers' seconds in which none had begun yet."""
    first = min((one.began for one in segments if began <= one.began < ended), default=began)
    return (first - began) * workers


def _busy_seconds(segments: list[_Busy], began: float, ended: float, workers: int) -> float:
    """Add up the seconds in which workers had something to do: trials spread over all before any has two."""
    changes = sorted([(one.began, 1) for one in segments] + [(one.ended, -1) for one in segments])
    seconds, last, running = 0.0, began, 0
    for when, change in [*changes, (ended, 0)]:
        here = min(max(when, began), ended)
        seconds += (here - last) * min(running, workers)
        last, running = here, running + change
    return seconds


def _most_at_once(segments: list[_Busy]) -> int:
    changes = sorted([(one.began, 1) for one in segments] + [(one.ended, -1) for one in segments])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _lanes(segments: list[_Busy]) -> list[list[_Busy]]:
    """Put segments into as few lanes as there ran at once."""
    lanes: list[list[_Busy]] = []
    free: list[int] = []
    ends: list[tuple[float, int]] = []
    for one in sorted(segments, key=lambda one: (one.began, one.ended)):
        while ends and ends[0][0] <= one.began:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(one)
        heapq.heappush(ends, (one.ended, lane))
    return lanes
