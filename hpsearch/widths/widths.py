"""Decides the widths of a sweep's segments: of those that start, and of running ones that should change.

A trial gets more workers only while nothing else could use them. It releases them when something can: its segment is
cut at its next report and resumes with another width. All decisions follow from events, and from the measured times of
the sweep's iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpsearch.decision import Decision
from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.trial import Report, Segment
from hpsearch.widths.allocator import Demand, allocate
from hpsearch.widths.speedup import Overhead, Speedup

RESTART_SECONDS = 0.5
"""Estimated time to cut and resume a segment, until it is measured."""

_MIN_SPEEDUP = 1.05
"""Predicted speedup of an iteration that is required to change the width of a running segment."""

_MIN_ITERATIONS = 2
"""Iterations that a wide segment runs before it may be narrowed. The first one has cold caches."""


_Rung = tuple[int, int | None, int | None]
"""Bracket, end, and maximum number of workers. Segments with the same rung get the same width."""


@dataclass(slots=True)
class _Running:
    """A running segment."""

    segment: Segment
    rung: _Rung
    reached: int
    reported_seconds: float = 0.0
    """Sum of the times of its reports."""
    cut: bool = False
    """Whether it was requested to end early."""

    @property
    def remaining(self) -> int:
        """Iterations that could run with another width: all remaining ones but the current one."""
        return 0 if self.segment.end is None else max(self.segment.end - self.reached - 1, 0)


class Widths:
    """Decides the widths of a sweep's segments.

    Args:
        least: Minimum number of workers of a trial.
        most: Maximum number of workers of a trial.
        widest: Returns the maximum number of workers of a trial; None: no own limit.
        restart: Estimated time in seconds to cut and resume a segment, until it is measured.
        alone_first: Widen a trial only after it has run alone for an iteration. Set if trials share workers, since
            the time of trials that run together does not show the time of one trial.
        narrowest: Returns the number of workers that a trial needs for its memory.
    """

    def __init__(
        self,
        least: int,
        most: int,
        widest: Callable[[int], int | None] = lambda trial: None,
        restart: float = RESTART_SECONDS,
        alone_first: bool = False,
        narrowest: Callable[[int], int] = lambda trial: 1,
    ) -> None:
        self.least = least
        """Minimum number of workers of a trial."""
        self._most = most
        self._widest = widest
        self._alone_first = alone_first
        self._narrowest = narrowest
        self._speedup = Speedup()
        self._overhead = Overhead(restart)
        self._running: dict[int, _Running] = {}
        self._wide: set[int] = set()
        """Running trials that could release workers."""
        self._promises: dict[int, int] = {}
        """Trials that were cut to be widened, and the widths to resume with."""
        self._saves = False

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Update the state by an event, of this or an earlier run, and the scheduler's decisions on it."""
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
                    self._overhead.observe(running.segment.width > self.least, seconds - running.reported_seconds)
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
        """Update the times by reports, live or of an event. Known reports are ignored."""
        for report in reports:
            running = self._running.get(report.trial)
            if running is None or report.iteration <= running.reached:
                continue
            if report.seconds > 0 and report.lanes == 1:
                first = report.iteration == running.segment.start + 1
                self._speedup.observe(report.trial, running.segment.width, report.seconds, first)
            running.reported_seconds += report.seconds
            running.reached = report.iteration

    def assign(self, starts: Sequence[Started], free: int, waiting: int) -> list[Started]:
        """Return the segments to start with their widths, and the reasons for them.

        A segment that needs more workers for its memory gets them even if they are not free yet.

        Args:
            starts: Segments to start, in order. There are workers for all of them at the minimum width.
            free: Number of free workers.
            waiting: Number of further segments that could start if there were workers.
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
        still_free = free - sum(widths)
        return [
            self._with_width(start, width, self._reason(start.segment.trial, width, still_free))
            for start, width in zip(starts, widths, strict=True)
        ]

    def cuts(self, free: int, waiting: int, workers: int) -> list[tuple[int, int]]:
        """Return the running segments that should end early to resume with another width, as (trial, attempt).

        Args:
            free: Number of free workers.
            waiting: Number of segments that could start if there were workers.
            workers: Number of all workers. If trials share workers, wide trials are also cut so that each trial can
                have its own.
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
        """Choose segments that release workers to waiting trials: whole rungs, as few as possible."""
        running = list(self._running.values()) if self._wide else []
        workers = free + _workers(running)
        new = min(waiting, workers // self.least - len(running))
        if new <= 0:
            return []
        targets = self._targets(running, workers, new)
        missing = new * self.least - free
        rungs: dict[_Rung, list[tuple[int, _Running]]] = {}
        for other, target in zip(running, targets, strict=False):
            released = other.segment.width - max(target, self._needed(other.segment.trial))
            if other.cut:
                missing -= max(released, 0)
            elif released > 0 and self._remaining_seconds(other, other.segment.width) > self._overhead.segment:
                rungs.setdefault(other.rung, []).append((released, other))
        chosen: list[_Running] = []
        # The rung that releases the most workers comes first, so that few segments are cut.
        for members in sorted(rungs.values(), key=lambda members: -sum(released for released, _ in members)):
            if missing <= 0:
                break
            missing -= sum(released for released, _ in members)
            chosen += [other for _, other in members]
        return chosen

    def _too_wide(self, free: int) -> list[_Running]:
        """Choose segments that would be faster on fewer workers."""
        if not self._wide or self._speedup.serial_fraction <= 1:
            return []  # more workers are faster
        running = list(self._running.values())
        targets = self._targets(running, free + _workers(running))
        return [
            other
            for other, target in zip(running, targets, strict=False)
            if max(target, self._needed(other.segment.trial)) < other.segment.width
            and not other.cut
            and other.reached - other.segment.start >= _MIN_ITERATIONS
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
        """Allocate all workers to the running segments and `new` segments that could start."""
        demands = [self._demand(other.segment, other.rung, other.reached) for other in running]
        return self._allocate(workers, [*demands, *[Demand(None, 0.0)] * new])

    def _share(self, free: int, starts: Sequence[Demand]) -> tuple[list[int], list[tuple[_Running, int]]]:
        """Allocate free workers to segments that start and to running segments, without narrowing any.

        Returns:
            The widths of the segments that start; the running segments to cut, with their new widths.
        """
        room = max(free - self._reserved(), self.least * len(starts))
        allocated = [max(start.owned, self.least) for start in starts]
        if room == sum(allocated):
            return allocated, []
        if room < sum(allocated):
            # Workers were lost, or new trials took them: promises cannot be kept.
            return self._allocate(room, [replace(start, owned=0) for start in starts]), []
        spare = room - sum(start.owned for start in starts)
        candidates = self._widenable(room - sum(allocated)) if self._saves else []
        while True:
            running = [self._demand(o.segment, o.rung, o.reached, owned=o.segment.width) for o in candidates]
            widths = self._allocate(spare, [*starts, *running])
            wider = [
                (other, width)
                for other, width in zip(candidates, widths[len(starts) :], strict=True)
                if width > other.segment.width and self._pays(other, width)
            ]
            if len(wider) == len(candidates):
                return widths[: len(starts)], wider
            # Without the segments that keep their width, there may be more workers for the others.
            candidates = [other for other, _ in wider]

    def _widenable(self, spare: int) -> list[_Running]:
        """Return the segments of the rungs that could be widened by one with `spare` workers."""
        rungs: dict[_Rung, list[_Running]] = {}
        for other in self._running.values():
            if not other.cut:
                rungs.setdefault(other.rung, []).append(other)
        widenable: list[_Running] = []
        for (_, _, widest), members in rungs.items():
            widths = [other.segment.width for other in members]
            narrowest = min(widths)
            if narrowest < (widest or self._most) and widths.count(narrowest) <= spare:
                widenable += members
        return widenable

    def _reserved(self) -> int:
        """Return the number of free workers that are promised to trials that still run."""
        running = ((self._running.get(trial), promise) for trial, promise in self._promises.items())
        return sum(promise - other.segment.width for other, promise in running if other is not None)

    def _allocate(self, workers: int, demands: Sequence[Demand]) -> list[int]:
        return allocate(
            workers, demands, self.least, self._most, self._speedup.relative_time, extra=self._overhead.extra
        )

    def _demand(self, segment: Segment, rung: _Rung, reached: int, owned: int = 0) -> Demand:
        iterations = 1 if segment.end is None else segment.end - reached
        seconds = iterations * self._speedup.seconds(segment.trial) if self._is_known(segment.trial) else 0.0
        return Demand(rung, seconds, rung[-1], owned)

    def _is_known(self, trial: int) -> bool:
        """Return whether there are enough measured times of a trial to widen it."""
        return not self._alone_first or self._speedup.knows(trial)

    def _rung(self, start: Started) -> _Rung:
        return start.bracket, start.segment.end, self._widest(start.segment.trial)

    def _remaining_seconds(self, running: _Running, width: int) -> float:
        """Return the predicted seconds from the next report to the end, at a width."""
        return running.remaining * self._speedup.seconds(running.segment.trial) * self._speedup.relative_time(width)

    def _pays(self, running: _Running, width: int) -> bool:
        """Return whether another width pays off: faster iterations, and an earlier end despite the restart."""
        now, then = self._remaining_seconds(running, running.segment.width), self._remaining_seconds(running, width)
        return now > _MIN_SPEEDUP * then and now - then > self._overhead.segment

    def _end(self, trial: int) -> None:
        self._running.pop(trial, None)
        self._wide.discard(trial)
        self._promises.pop(trial, None)

    def _reason(self, trial: int, width: int, free: int) -> str:
        if width == self.least:
            if self._widest(trial) == width:
                return "it went wrong on more workers"
            if free <= 0:
                return "no more are free"
            if not self._is_known(trial):
                return "what an iteration takes alone isn't known yet"
            return f"its rung would not end sooner with the {_count(free)} that {'is' if free == 1 else 'are'} left"
        time = self._speedup.relative_time
        relative_time = time(width) / time(self.least)
        basis = "predicted" if self._speedup.measured else "a probe: nothing is measured yet, at best"
        return f"nothing else can start; {basis} {relative_time:.2f} of the time on {_count(self.least)}"


def _workers(running: Sequence[_Running]) -> int:
    """Return the number of workers that the segments have."""
    return sum(other.segment.width for other in running)


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
