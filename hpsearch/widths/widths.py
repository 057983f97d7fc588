"""How wide the segments of a sweep run: what the allocator is asked, and what becomes of its answers.

A trial gets more workers only while nothing else could use them, and gives them back when something can: its segment
is cut at its next report, and goes on from there with another width. All decisions follow from events, and from the
times that the sweep's own iterations took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpsearch.decision import Decision
from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.trial import Report, Segment
from hpsearch.widths.allocator import Demand, allocate
from hpsearch.widths.speedup import Overhead, Speedup

__all__ = ["RESTART_SECONDS", "Widths"]

RESTART_SECONDS = 0.5
"""What it costs to cut a segment and to go on with it, until some segment has ended and it is known better."""

_WORTH = 1.05
"""A running segment gets another width for its own good only where an iteration is predicted to be quicker by this."""

_SURE = 2
"""Iterations that a wide segment runs before it may be found too wide: the first one has caches to fill."""


_Rung = tuple[int, int | None, int | None]
"""Bracket, end, and the workers that a trial may have: equal for those that run alike."""


@dataclass(slots=True)
class _Running:
    """A segment that runs."""

    segment: Segment
    rung: _Rung
    reached: int
    told: float = 0.0
    """Seconds that its reports add up to."""
    cut: bool = False
    """It was told to end early."""

    @property
    def left(self) -> int:
        """Iterations that a segment with another width could take over: all but the one that runs now."""
        return 0 if self.segment.end is None else max(self.segment.end - self.reached - 1, 0)


class Widths:
    """Decides the widths of one sweep's segments; pure."""

    def __init__(
        self,
        least: int,
        most: int,
        widest: Callable[[int], int | None] = lambda trial: None,
        restart: float = RESTART_SECONDS,
        alone_first: bool = False,
        narrowest: Callable[[int], int] = lambda trial: 1,
    ) -> None:
        """Join the parts.

        Args:
            least: Workers that a trial needs.
            most: Workers that a trial may have.
            widest: Gives the workers that this trial may have at most; None: as many as any.
            restart: Seconds that it costs to cut a segment and go on with it, while nothing is measured.
            alone_first: Whether a trial is widened only once it was trained alone for an iteration: not where trials
                share workers, whose times together say nothing of what one takes.
            narrowest: Gives the workers without which this trial hasn't memory enough.
        """
        self.least = least
        """Workers that a trial needs."""
        self._most = most
        self._widest = widest
        self._alone_first = alone_first
        self._narrowest = narrowest
        self._speedup = Speedup()
        self._overhead = Overhead(restart)
        self._running: dict[int, _Running] = {}
        self._wide: set[int] = set()
        """Running trials that could give workers back."""
        self._promises: dict[int, int] = {}
        """Trials that were cut to be widened, to the workers that they are to go on with."""
        self._saves = False

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take an event, of this run or of a former one, and what the scheduler decided on it."""
        if self._most == self.least:
            return
        match event:
            case Started(segment=segment):
                self._running[segment.trial] = _Running(segment, self._rung(event), segment.start)
                if segment.width > self.least:
                    self._wide.add(segment.trial)
            case Saved(reports=reports):
                self._saves = True
                self.report(reports)
            case Finished(trial=trial, checkpoint=checkpoint, reports=reports, seconds=seconds):
                self._saves = checkpoint is not None
                self.report(reports)
                running = self._running.get(trial)
                promise = self._promises.get(trial)
                self._end(trial)
                if running is not None:
                    self._overhead.observe(running.segment.width > self.least, seconds - running.told)
                    if promise is not None and event.cut and event.iteration != running.segment.end:
                        self._promises[trial] = promise  # the rest of the segment is requeued
            case Failed(trial=trial, retry=retry):
                self._end(trial)
                if not retry:
                    self._speedup.forget(trial)
            case Lost(trial=trial) | Reverted(trial=trial):
                self._end(trial)
            case Opened() | Ended():
                self._running.clear()
                self._wide.clear()
                self._promises.clear()
        for decision in decisions:
            if decision.action in ("stop", "complete"):
                self._speedup.forget(decision.trial)

    def report(self, reports: Sequence[Report]) -> None:
        """Take reports, live or of an event; those that it knows already are left out."""
        for report in reports:
            running = self._running.get(report.trial)
            if running is None or report.iteration <= running.reached:
                continue
            if report.seconds > 0 and report.lanes == 1:
                first = report.iteration == running.segment.start + 1
                self._speedup.observe(report.trial, running.segment.width, report.seconds, first)
            running.told += report.seconds
            running.reached = report.iteration

    def assign(self, starts: Sequence[Started], free: int, waiting: int) -> list[Started]:
        """Give segments that are to start their widths, and the reasons.

        One that needs more of them for its memory gets these, also where they aren't free yet.

        Args:
            starts: In their order; there is room for all of them at the least width.
            free: Workers that have nothing to do.
            waiting: Segments that could start as well, if there were room.
        """
        if self._most == self.least:
            return [replace(start, segment=replace(start.segment, width=self.least)) for start in starts]
        promises = [self._promises.pop(start.segment.trial, 0) for start in starts]
        if waiting or not starts:
            return [self._with_width(start, self.least, "other trials wait for workers") for start in starts]
        demands = [
            self._demand(start.segment, self._rung(start), start.segment.start, promise)
            for start, promise in zip(starts, promises, strict=True)
        ]
        widths, _ = self._share(free, demands)
        left = free - sum(widths)
        return [
            self._with_width(start, width, self._reason(start.segment.trial, width, left))
            for start, width in zip(starts, widths, strict=True)
        ]

    def cuts(self, free: int, waiting: int, workers: int) -> list[tuple[int, int]]:
        """Say which running segments, as (trial, attempt), should end early to go on with another width.

        Args:
            free: Workers that have nothing to do.
            waiting: Segments that could start if there were room.
            workers: All there are. Where trials share them, those that do could have one each if no trial had several.
        """
        if self._most == self.least or not self._saves or not self._running:
            return []
        if self._alone_first:
            waiting += max(_workers(list(self._running.values())) - workers, 0)
        if waiting:
            chosen = self._for_others(free, waiting)
        else:
            _, wider = self._share(free, []) if free else ([], [])
            self._promises.update({other.segment.trial: width for other, width in wider})
            chosen = [*self._too_wide(free), *(other for other, _ in wider)]
        for other in chosen:
            other.cut = True
        return [(other.segment.trial, other.segment.attempt) for other in chosen]

    def _for_others(self, free: int, waiting: int) -> list[_Running]:
        """Choose segments that give workers to trials that wait: whole rungs, no more of them than it takes."""
        running = list(self._running.values()) if self._wide else []
        workers = free + _workers(running)
        new = min(waiting, workers // self.least - len(running))
        if new <= 0:
            return []
        targets = self._targets(running, workers, new)
        missing = new * self.least - free
        rungs: dict[_Rung, list[tuple[int, _Running]]] = {}
        for other, target in zip(running, targets, strict=False):
            given = other.segment.width - max(target, self._needed(other.segment.trial))
            if other.cut:
                missing -= max(given, 0)
            elif given > 0 and self._seconds_left(other, other.segment.width) > self._overhead.segment:
                rungs.setdefault(other.rung, []).append((given, other))
        chosen: list[_Running] = []
        # The rung that gives the most comes first, so that the fewest are disturbed.
        for members in sorted(rungs.values(), key=lambda members: -sum(given for given, _ in members)):
            if missing <= 0:
                break
            missing -= sum(given for given, _ in members)
            chosen += [other for _, other in members]
        return chosen

    def _too_wide(self, free: int) -> list[_Running]:
        """Choose segments that would be quicker on fewer workers."""
        if not self._wide or self._speedup.share <= 1:
            return []  # up to there, more workers are quicker
        running = list(self._running.values())
        targets = self._targets(running, free + _workers(running))
        return [
            other
            for other, target in zip(running, targets, strict=False)
            if max(target, self._needed(other.segment.trial)) < other.segment.width
            and not other.cut
            and other.reached - other.segment.start >= _SURE
            and self._pays(other, target)
        ]

    def _with_width(self, start: Started, width: int, reason: str) -> Started:
        needed = self._needed(start.segment.trial)
        if needed > width:
            width, reason = needed, "there wasn't memory enough on fewer"
        return replace(start, segment=replace(start.segment, width=width), reason=reason)

    def _needed(self, trial: int) -> int:
        return min(max(self.least, self._narrowest(trial)), self._most)

    def _targets(self, running: Sequence[_Running], workers: int, new: int = 0) -> list[int]:
        """Divide all workers anew among segments that run, and so many that are to start."""
        demands = [self._demand(other.segment, other.rung, other.reached) for other in running]
        return self._allocate(workers, [*demands, *[Demand(None, 0.0)] * new])

    def _share(self, free: int, starts: Sequence[Demand]) -> tuple[list[int], list[tuple[_Running, int]]]:
        """Divide free workers among segments that are to start and those that run; none gives any away.

        Returns:
            The widths of those that are to start; those that run and are to be cut, and what they are to go on with.
        """
        room = max(free - self._reserved(), self.least * len(starts))
        kept = [max(start.held, self.least) for start in starts]
        if room == sum(kept):
            return kept, []
        if room < sum(kept):
            # Workers went, or new trials took them: promises can't be kept.
            return self._allocate(room, [replace(start, held=0) for start in starts]), []
        spare = room - sum(start.held for start in starts)
        able = self._able(room - sum(kept)) if self._saves else []
        while True:
            running = [self._demand(o.segment, o.rung, o.reached, held=o.segment.width) for o in able]
            widths = self._allocate(spare, [*starts, *running])
            wider = [
                (other, width)
                for other, width in zip(able, widths[len(starts) :], strict=True)
                if width > other.segment.width and self._pays(other, width)
            ]
            if len(wider) == len(able):
                return widths[: len(starts)], wider
            # Those that keep their width take no share: there may be more for the rest than with them.
            able = [other for other, _ in wider]

    def _able(self, spare: int) -> list[_Running]:
        """Give the segments whose rung could be wider by one, if it got all the workers that are to spare."""
        rungs: dict[_Rung, list[_Running]] = {}
        for other in self._running.values():
            if not other.cut:
                rungs.setdefault(other.rung, []).append(other)
        able: list[_Running] = []
        for (_, _, widest), members in rungs.items():
            widths = [other.segment.width for other in members]
            narrowest = min(widths)
            if narrowest < (widest or self._most) and widths.count(narrowest) <= spare:
                able += members
        return able

    def _reserved(self) -> int:
        """Count the free workers that are promised to trials which still run."""
        running = ((self._running.get(trial), promise) for trial, promise in self._promises.items())
        return sum(promise - other.segment.width for other, promise in running if other is not None)

    def _allocate(self, workers: int, demands: Sequence[Demand]) -> list[int]:
        return allocate(
            workers, demands, self.least, self._most, self._speedup.relative_time, extra=self._overhead.extra
        )

    def _demand(self, segment: Segment, rung: _Rung, reached: int, held: int = 0) -> Demand:
        left = 1 if segment.end is None else segment.end - reached
        seconds = left * self._speedup.seconds(segment.trial) if self._is_known(segment.trial) else 0.0
        return Demand(rung, seconds, rung[-1], held)

    def _is_known(self, trial: int) -> bool:
        """Say whether a trial may be widened, as far as what is known of its times goes."""
        return not self._alone_first or self._speedup.knows(trial)

    def _rung(self, start: Started) -> _Rung:
        """Give what those have in common that run alike: the rung, but for trials that may not be as wide as others."""
        return start.bracket, start.segment.end, self._widest(start.segment.trial)

    def _seconds_left(self, running: _Running, width: int) -> float:
        """Seconds from its next report to its end, at a width."""
        return running.left * self._speedup.seconds(running.segment.trial) * self._speedup.relative_time(width)

    def _pays(self, running: _Running, width: int) -> bool:
        """Say whether it would end sooner at another width, restart included, and each iteration by a fair part."""
        now, then = self._seconds_left(running, running.segment.width), self._seconds_left(running, width)
        return now > _WORTH * then and now - then > self._overhead.segment

    def _end(self, trial: int) -> None:
        self._running.pop(trial, None)
        self._wide.discard(trial)
        self._promises.pop(trial, None)

    def _reason(self, trial: int, width: int, left: int) -> str:
        if width == self.least:
            if self._widest(trial) == width:
                return "it went wrong on more workers"
            if left <= 0:
                return "no more are free"
            if not self._is_known(trial):
                return "what an iteration takes alone isn't known yet"
            return f"its rung would not end sooner with the {_count(left)} that {'is' if left == 1 else 'are'} left"
        time = self._speedup.relative_time
        share = time(width) / time(self.least)
        known = "predicted" if self._speedup.measured else "a probe: nothing is measured yet, at best"
        return f"nothing else can start; {known} {share:.2f} of the time on {_count(self.least)}"


def _workers(running: Sequence[_Running]) -> int:
    """Count the workers that they hold."""
    return sum(other.segment.width for other in running)


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
