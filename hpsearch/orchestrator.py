"""The loop that runs a sweep: take what happened, write it to the journal, ask what comes next, start it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpsearch.backends.base import Backend, Gone, Message, Notice, Progress, Result, Task, TimedOut
from hpsearch.course import Course
from hpsearch.divergence import diverged
from hpsearch.errors import BackendError, HpsearchError, StorageError, TrainableError
from hpsearch.events import Dropped, Ended, Event, Exhausted, Failed, Finished, Lost, Reverted, Saved, Started
from hpsearch.interrupts import Interrupts
from hpsearch.job import Job, SegmentResult
from hpsearch.journal import Journal
from hpsearch.observers.base import Audience
from hpsearch.schedulers.base import Decision, Done
from hpsearch.sweep import Sweep
from hpsearch.trial import Failure
from hpsearch.widths import Widths

__all__ = ["MOST_LOSSES", "Orchestrator"]

MOST_LOSSES = 5
"""Attempts of one segment that may vanish with their worker in a row before the trial is said to kill its workers."""

_TICK = 0.25
"""Seconds between looks at requests, limits and the screen."""


class Orchestrator:
    """Runs one sweep on one backend until it is finished or told to end."""

    def __init__(
        self,
        sweep: Sweep,
        course: Course,
        widths: Widths,
        journal: Journal,
        backend: Backend,
        audience: Audience,
        interrupts: Interrupts,
        spent: float = 0.0,
        discard: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Join the parts.

        Args:
            sweep: What to run.
            course: Where it stands; the journal's events were applied to it.
            widths: Says how wide segments run; it has observed the journal's events.
            journal: Open for writing, with this run's `Opened` in it.
            backend: Where segments run; opened and closed here.
            audience: Told everything, after it was journaled.
            interrupts: Entered by the caller.
            spent: Seconds that former runs took of `limits.max_time`.
            discard: Takes the checkpoints that nothing needs any more.
        """
        self._limits = sweep.limits
        self._metric = sweep.metric
        scaling = sweep.scaling
        # With a global batch the width changes no result, so a worse one says nothing about the width.
        self._tolerance = scaling.tolerance if scaling.batch == "per_worker" else None
        self._course = course
        self._widths = widths
        self._journal = journal
        self._backend = backend
        self._audience = audience
        self._interrupts = interrupts
        self._spent = spent
        self._discard = discard
        self._events: list[Event] = []  # applied, not yet in the journal
        self._decided: list[tuple[Event, Sequence[Decision]]] = []
        self._ending: str | None = None
        self._mistake: HpsearchError | None = None
        self._request = journal.last_request()
        self._next_check = self._next_look = 0.0
        self._began = 0.0

    def run(self, job: Job) -> str:
        """Run the sweep; answer how it ended: `finished`, `interrupted`, `stopped` or `max_time`.

        Raises:
            BackendError: The backend can't be opened.
            TrainableError: The first segments break the sweep's contract, so all others would too.
            StorageError: The study's directory can't be written any more.
        """
        try:
            self._backend.open(job, self._deliver)
            self._began = self._backend.now()
            state = self._loop()
            self._look(last=True)
            self._backend.close()
            self._note(Ended(state, "" if self._mistake is None else str(self._mistake)))
            self._commit()
        except KeyboardInterrupt:
            # It may have struck between a commit and what follows, so nothing more is written.
            self._backend.close(kill=True)
            return "interrupted"
        except BackendError:
            self._backend.close(kill=True)
            if self._interrupts.count:  # the signal was for all of the process group, and ended the place, too
                return "interrupted"
            raise
        except BaseException:
            self._backend.close(kill=True)
            raise
        if self._mistake is not None:
            raise self._mistake
        return state

    def _loop(self) -> str:
        while True:
            self._check()
            finished = self._ending is None and self._fill()
            self._commit()
            self._change_widths()
            self._look()
            if self._course.idle:
                if self._ending is not None:
                    return self._ending
                if finished:
                    return "finished"
            for message in self._backend.wait(_TICK):
                self._take(message)

    def _fill(self) -> bool:
        """Start what can be started; say whether the sweep has nothing more to start, ever."""
        free = self._backend.capacity()
        starts: list[Started] = []
        while free >= self._widths.least * (len(starts) + 1):
            answer = self._course.next()
            if isinstance(answer, Started):
                starts.append(answer)
                continue
            # Whatever the scheduler answers instead of a start, it had no other start to give.
            free -= self._note_starts(starts, free, waiting=0)
            starts = []
            if not isinstance(answer, Exhausted):
                return isinstance(answer, Done)
            self._note(answer)
        ready = self._course.ready()
        self._note_starts(starts, free, ready)
        # Also without a worker: they may all have gone with the last trial, and nobody has to wait for new ones.
        return ready == 0 and isinstance(self._course.next(), Done)

    def _note_starts(self, starts: Sequence[Started], free: int, waiting: int) -> int:
        """Give segments their widths, and note them; answer how many workers they take."""
        starts = self._widths.assign(starts, free, waiting)
        for start in starts:
            self._note(start)
        return sum(start.segment.width for start in starts)

    def _change_widths(self) -> None:
        """Cut the segments that should go on with another width."""
        if self._ending is None:
            for trial, attempt in self._widths.cuts(self._backend.capacity(), self._course.ready()):
                self._backend.cut(trial, attempt)

    def _deliver(self, message: Message) -> None:
        """Take a message while the backend runs the trainable in this very thread."""
        self._take(message)
        self._commit()
        self._check()
        self._look()

    def _note(self, event: Event) -> None:
        decisions = self._course.apply(event)
        self._widths.observe(event, decisions)
        self._decided.append((event, decisions))
        self._events.append(event)

    def _commit(self) -> None:
        """Write what was noted in one transaction, and only then act on it."""
        if not self._events:
            return
        self._journal.append(self._events)
        decided, self._decided = self._decided, []
        self._events.clear()
        for event, decisions in decided:
            self._audience.observe(event, decisions)
            if isinstance(event, Started):
                self._start(event)
        self._discard(self._course.obsolete())

    def _start(self, event: Started) -> None:
        standing = self._course.standing(event.segment.trial)
        timeout = self._limits.trial_timeout
        left = None if timeout is None else max(timeout - standing.seconds, 0.001)
        self._backend.start(Task(standing.trial, event.segment, left))

    def _take(self, message: Message) -> None:
        match message:
            case Progress(trial=trial, attempt=attempt, reports=reports, saved=saved):
                self._widths.report(reports)
                self._audience.report(reports)
                if saved is not None:
                    iteration, checkpoint, counted = saved
                    self._note(Saved(trial, attempt, iteration, checkpoint, counted))
            case Result(trial=trial, attempt=attempt, result=result):
                self._take_result(trial, attempt, result)
            case TimedOut(trial=trial, attempt=attempt, failure=failure):
                self._note(Failed(trial, attempt, failure, retry=False, reports=()))
            case Gone():
                self._take_loss(message)
            case Notice(text=text):
                self._audience.say(text)

    def _take_result(self, trial: int, attempt: int, result: SegmentResult) -> None:
        failure = result.failure
        harm = self._harm(trial, result)
        if harm is not None:
            iteration, reason = harm
            self._go_back(Reverted(trial, attempt, iteration, reason, result.seconds, result.checkpoint))
        elif failure is None:
            self._note(
                Finished(
                    trial,
                    attempt,
                    result.iteration,
                    result.checkpoint,
                    result.reports,
                    result.cut,
                    result.seconds,
                )
            )
        elif failure.kind == "checkpoint":
            self._audience.say(f"trial {trial} starts again from zero: {failure.message}")
            self._note(Lost(trial, attempt, failure.message, innocent=True))
            self._note(Dropped(trial, failure.message))
        elif failure.kind == "storage":
            self._note(Lost(trial, attempt, failure.message, innocent=True))
            self._mistake = self._mistake or StorageError(f"{failure.message}. Make room, then resume.")
            self._end("error")
        elif failure.kind == "contract" and self._course.finished_segments == 0:
            # Every trial would break it the same way: say so once, and leave the sweep to be resumed when mended.
            self._note(Lost(trial, attempt, failure.message, innocent=False))
            self._mistake = self._mistake or TrainableError(failure.message)
            self._end("error")
        else:
            retry = failure.kind == "raised" and (self._course.standing(trial).failures < self._limits.max_retries)
            self._note(Failed(trial, attempt, failure, retry, () if retry else result.reports))

    def _harm(self, trial: int, result: SegmentResult) -> tuple[int, str] | None:
        """Say what more workers than before did to a trial, and the iteration it goes back to; None: nothing."""
        standing = self._course.standing(trial)
        footing, segment, failure = standing.footing, standing.segment, result.failure
        if footing is None or segment is None or result.cut:
            return None
        if failure is None:
            value = result.reports[-1].metrics[self._metric.name] if result.reports else standing.value
            wrong = diverged(value, footing.value, self._metric.goal, self._tolerance)
            what = None if wrong is None else f"{self._metric.name} {wrong}"
        else:
            blamed = failure.kind == "raised" or (failure.kind == "contract" and self._course.finished_segments > 0)
            what = failure.message if blamed else None
        return None if what is None else (footing.iterations, f"width {segment.width}: {what}")

    def _go_back(self, event: Reverted) -> None:
        where = f"trial {event.trial} goes back to iteration {event.iteration} and to fewer workers"
        self._audience.say(f"{where}: {event.reason}")
        self._note(event)

    def _take_loss(self, gone: Gone) -> None:
        losses = self._course.standing(gone.trial).losses + (not gone.innocent)
        if losses < MOST_LOSSES or self._ending is not None:
            self._note(Lost(gone.trial, gone.attempt, gone.reason, gone.innocent))
            return
        message = f"its worker died {MOST_LOSSES} times in a row without progress; the last time: {gone.reason}"
        standing = self._course.standing(gone.trial)
        if standing.footing is not None:
            reason = f"width {standing.width}: {message}"
            self._go_back(Reverted(gone.trial, gone.attempt, standing.footing.iterations, reason, 0.0))
            return
        self._note(Failed(gone.trial, gone.attempt, Failure("died", message, ""), retry=False, reports=()))

    def _check(self) -> None:
        """See whether the sweep is to end before it is finished."""
        if self._ending is not None:
            return
        if self._interrupts.count:
            self._audience.say("ending at the next reports; press Ctrl-C again to end at once")
            self._end("interrupted")
        now = time.monotonic()
        if now < self._next_check or self._ending is not None:
            return
        self._next_check = now + _TICK
        limit = self._limits.max_time
        if limit is not None and self._spent + self._elapsed() >= limit:
            self._end("max_time")
        if any(verb == "stop" for _, verb in self._journal.requests(self._request)):
            self._end("stopped")

    def _look(self, last: bool = False) -> None:
        """Let the audience look at where the sweep stands."""
        now = time.monotonic()
        if last or now >= self._next_look:
            self._next_look = now + _TICK
            self._audience.look(self._course, self._backend.workers(), self._elapsed(), last)

    def _elapsed(self) -> float:
        return self._backend.now() - self._began

    def _end(self, state: str) -> None:
        self._ending = state
        for segment in self._course.running():
            self._backend.cut(segment.trial, segment.attempt)
