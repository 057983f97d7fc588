"""The loop that runs a sweep: receive events, journal them, decide what comes next, and start it."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpsearch.backends.base import Backend
from hpsearch.decision import Followed
from hpsearch.errors import HpsearchError, Interrupted, SearcherError
from hpsearch.events import (
    Asked,
    Ended,
    Event,
    Exhausted,
    Failed,
    Lost,
    Noted,
    Pruned,
    Retried,
    Saved,
    Started,
    Steered,
)
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal, Request, person
from hpsearch.observers.base import Observers, Record
from hpsearch.run.interrupts import Interrupts
from hpsearch.run.steering import answer, refusal
from hpsearch.run.time_limit import TimeLimit
from hpsearch.run.verdicts import Rules, broken_off, verdict
from hpsearch.schedulers.base import Done
from hpsearch.searchers.first_trials import STAND_IN
from hpsearch.study.state import Next, SweepState
from hpsearch.study.stopping import CRITERIA, mistake_of
from hpsearch.tables.wording import counted
from hpsearch.task import Message, Notice, Progress, Result, Task
from hpsearch.trial import Report, Segment, Trial, TrialState
from hpsearch.worker.job import Job

_SEARCHING_TICK = 0.01
"""Seconds between two polls of a searcher that computes a suggestion."""

_SEARCHING_SHARE = 0.01
"""Longest wait of a free worker for a suggestion, as a fraction of a segment's time."""

_PAUSED_TICK = 0.1
"""Seconds between two looks at requests while the sweep is paused and nothing runs."""


class _Remarks:
    """Messages about trials, each only once.

    Args:
        observers: Receive the messages.
        module_changes_stay: Consequence of a change of the trainable's modules; empty: there is no message.
    """

    def __init__(self, observers: Observers, module_changes_stay: str = "") -> None:
        self._observers = observers
        self._module_changes_stay = module_changes_stay
        self._reported: set[str] = set()  # settings that trials changed, and values of modules
        self._reported_ignored = False
        self._stand_ins = 0

    def start(self, event: Started, trial: Trial) -> None:
        """Report a fork that starts without its parent's checkpoint."""
        self._stand_ins += event.new is not None and event.new.origin == STAND_IN
        parent = None if event.new is None else event.new.parent
        if parent is not None and parent.checkpoint is None:
            self._observers.say(
                f"trial {trial.number} starts from zero: there is no checkpoint of trial {parent.number} at "
                f"iteration {parent.iteration}, from which it was to be forked"
            )

    def end(self, result: Result) -> None:
        """Report what a segment changed of its process, and a checkpoint that it ignored."""
        trial = result.trial
        new = [setting for setting in result.changed if setting not in self._reported]
        self._reported.update(new)
        if new:
            which = "; such changes are put back after each segment, and named in its output.log"
            self._observers.say(f"trial {trial} changed its whole process: {', '.join(new)}{which}")
        changes = [name for name in result.module_changes if name not in self._reported]
        if changes and self._module_changes_stay:
            self._reported.update(changes)
            self._observers.say(f"{', '.join(changes)} changed while trial {trial} ran: {self._module_changes_stay}")
        if result.stuck:
            self._observers.say(f"trial {trial} changed what couldn't be put back: {', '.join(result.stuck)}")
        if result.ignored_checkpoint and not self._reported_ignored:
            self._reported_ignored = True
            self._observers.say(
                f"trial {trial} went on from a checkpoint without a look at trial.checkpoint: if it trained "
                "from zero, what it reported isn't of the iterations that it counts for. Load the checkpoint before "
                "the loop, or report without one: then each promotion starts from zero"
            )

    def stand_ins(self) -> None:
        """Report how many trials ran a random configuration because no suggestion was ready."""
        if self._stand_ins:
            self._observers.say(
                f"{counted(self._stand_ins, 'trial')} took a random point, as no suggestion was ready when a worker "
                "was free; with search.ahead: false workers wait for suggestions"
            )


@dataclass(frozen=True, slots=True)
class _Room:
    """Available capacity: segments that could start at once, and workers."""

    starts: int
    """Number of segments that could start, each with the minimum number of workers."""
    workers: int
    """Available workers: those that would be free if each lane had its own."""
    least: int
    """Minimum number of workers of a segment that isn't a lane."""
    lanes: int
    """As in `Task`, of a segment that may be a lane."""

    @classmethod
    def of(cls, backend: Backend, least: int, lanes: int) -> _Room:
        """Return the capacity of a backend."""
        workers = backend.capacity()
        return cls(workers // least if lanes == 1 else backend.capacity(lanes), workers, least, lanes)

    def after(self, widths: Iterable[int]) -> _Room:
        """Return the remaining capacity after segments of these widths have started."""
        started = list(widths)
        workers = max(self.workers - sum(started), 0)
        if self.lanes == 1:
            return _Room(workers // self.least, workers, self.least, 1)
        # The backend chooses the workers of a gang, and so the lanes that the gang occupies.
        is_known = all(width == 1 for width in started)
        return _Room(self.starts - len(started) if is_known else 0, workers, self.least, self.lanes)


class Orchestrator:
    """Runs one sweep on one backend until it is finished or stopped."""

    def __init__(
        self,
        sweep_state: SweepState,
        journal: Journal,
        backend: Backend,
        observers: Observers,
        interrupts: Interrupts,
        spent: float = 0.0,
        discard: Callable[[Sequence[str]], None] = lambda _: None,
        edited: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Create the loop.

        Args:
            sweep_state: The state of the sweep; the journal's events were applied to it.
            journal: Open for writing, with this run's `Opened` in it.
            backend: Where segments run; opened and closed here.
            observers: Receive every event after it was journaled, and live reports before.
            interrupts: Entered by the caller.
            spent: Seconds of `limits.max_time` that earlier runs used.
            discard: Deletes checkpoints that are no longer needed.
            edited: Returns a message if the trainable's code was edited since this run began, else None.
        """
        self._sweep_state = sweep_state
        self._journal = journal
        self._backend = backend
        self._lanes = sweep_state.sweep.resources.lanes if backend.divides else 1
        self._observers = observers
        self._interrupts = interrupts
        self._discard = discard
        self._edited = edited
        self._noted: list[tuple[Event, Followed]] = []  # applied, but not journaled yet
        self._remarks = _Remarks(observers, backend.module_changes_stay)
        self._stopping: dict[tuple[int, int], str] = {}  # attempts that the scheduler stops, to why
        self._ending: str | None = None
        self._mistake: HpsearchError | None = None
        self._time = TimeLimit(backend, sweep_state.sweep.limits.max_time, spent)
        self._where = ""  # the study's directory, as a shell takes it
        self._has_checkpoint: Callable[[str], bool] = lambda address: True
        self._is_settled = True  # all that was noted is in the journal
        self._ended: Ended | None = None
        self._failing = False  # the sweep ends because too many trials have failed
        self._next_check = self._next_look = -math.inf
        self._segment_seconds = (0, 0.0)  # of how many segments in this run, and of all together
        self._searching_since: float | None = None

    def run(self, job: Job) -> str:
        """Run the sweep; return how it ended: see `Ended.state`.

        If a stopping criterion is met already, it ends before the backend is opened.

        Raises:
            BackendError: The backend can't be opened.
            TrainableError: Too many trials have failed, or the first break the sweep's contract as all others would.
            StorageError: The study's directory can't be written any more.
        """
        try:
            state = self._sweep_state.stopping.met
            self._where = shlex.quote(job.study)
            self._has_checkpoint = StudyDirectory(Path(job.study)).has_checkpoint
            if state is None:
                self._backend.open(job, self._deliver)
                self._time.begin()
                state = self._loop()
                self._look(last=True)
                self._remarks.stand_ins()
                self._backend.close()
            reason = self._sweep_state.stopping.reason if state in CRITERIA else ""
            self._note(Ended(state, reason if self._mistake is None else str(self._mistake)))
            self._commit()
        except BaseException as error:
            self._backend.close(kill=True)
            broken = broken_off(error, self._interrupts.count > 0)
            if self._ended is None and self._is_settled:  # otherwise a signal interrupted the handling of an event
                with suppress(HpsearchError, OSError):  # a write error may be the reason for the end
                    self._note(broken)
                    self._commit()
            if broken.state == "interrupted":
                return (self._ended or broken).state
            raise
        if self._mistake is not None:
            raise self._mistake
        return state

    def _loop(self) -> str:
        while True:
            self._check()
            paused = self._time.is_paused
            finished = self._ending is None and not paused and self._fill()
            self._commit()
            self._change_widths()
            self._look()
            if self._sweep_state.idle:
                if self._ending in CRITERIA:
                    # The report that reached the target may have been lost with its worker, and a trial that still ran
                    # may have improved the best value: then the sweep continues.
                    self._ending = self._sweep_state.stopping.met
                if self._ending is not None or finished:
                    if self._take_requests("finished"):  # what was left since the last look may be more to do
                        continue
                    return self._ending or "finished"
                if paused:
                    time.sleep(_PAUSED_TICK)
                    self._next_check = -math.inf  # a virtual clock doesn't advance
            tick = _SEARCHING_TICK if self._sweep_state.is_searching else self._backend.tick
            for message in self._backend.wait(tick):
                self._handle(message)

    def _fill(self) -> bool:
        """Start all segments that can start, and request the next suggestion in advance, if the sweep allows it.

        Return whether the sweep will never start anything again.
        """
        try:
            finished = self._filled()
            if self._ending is None and (request := self._sweep_state.request()) is not None:
                self._note(request)
        except SearcherError as error:
            self._end_for(error)
            return False
        if not self._sweep_state.is_searching:
            self._searching_since = None
        elif self._searching_since is None:
            self._searching_since = self._backend.now()
        return finished

    def _has_waited(self) -> bool:
        """Return whether a worker has waited too long for a suggestion.

        Before the first segment has ended the limit is unknown, and models without data are fast.
        """
        since, (count, seconds) = self._searching_since, self._segment_seconds
        return since is not None and count > 0 and self._backend.now() - since >= _SEARCHING_SHARE * seconds / count

    def _filled(self) -> bool:
        room = _Room.of(self._backend, self._sweep_state.widths.least, self._lanes)
        while True:
            starts: list[Started] = []
            upcoming = self._sweep_state.upcoming(self._has_waited())
            answer: Next | None = None
            # Segments with a company wait for separate workers. Their capacity isn't known, so nothing else starts
            # until the backend has started them.
            restricted = self._sweep_state.restricted_count() if self._lanes > 1 else 0
            while len(starts) < (restricted or room.starts):
                answer = next(upcoming)
                if not isinstance(answer, Started):
                    break
                starts.append(answer)
            full = answer is None or isinstance(answer, Started)
            waiting = full and self._sweep_state.has_more(len(starts))
            if starts and self._see_edit():
                return False
            starts = self._sweep_state.widths.assign(starts, room.workers, waiting)
            for start in starts:
                self._note(start)
            room = room.after(start.segment.width for start in starts)
            if full:
                # Also without a worker: all may have been lost with the last trial, and nothing waits for new ones.
                return not waiting and isinstance(self._sweep_state.next(), Done)
            if isinstance(answer, Asked | Exhausted):
                self._note(answer)
            elif not starts:  # otherwise more segments may be able to start now
                return isinstance(answer, Done)

    def _change_widths(self) -> None:
        """Cut the segments that should continue with another width."""
        if self._ending is None:
            free, waiting, workers = self._backend.capacity(), self._sweep_state.ready(), self._backend.workers().ready
            for trial, attempt in self._sweep_state.widths.cuts(free, waiting, workers):
                self._backend.cut(trial, attempt)

    def _deliver(self, message: Message) -> None:
        """Handle a message while the backend runs the trainable in this thread."""
        self._handle(message)
        self._commit()
        self._check()
        self._look()

    def _note(self, event: Event) -> None:
        self._is_settled = False
        self._ended = event if isinstance(event, Ended) else self._ended
        self._noted.append((event, self._sweep_state.apply(event)))

    def _commit(self) -> None:
        """Journal all noted events in one transaction, and act on them only then."""
        if not self._noted:
            return
        events, consequences = zip(*self._noted, strict=True)
        written = self._journal.append(events, consequences, self._backend.wall())
        committed, self._noted = self._noted, []
        self._is_settled = True
        for (seq, when), (event, followed) in zip(written, committed, strict=True):
            self._observers.observe(Record(seq, when, event, followed.decisions))
            if isinstance(event, Started):
                self._start(event)
        self._discard(self._sweep_state.obsolete())

    def _start(self, event: Started) -> None:
        record = self._sweep_state.record(event.segment.trial)
        timeout = self._sweep_state.sweep.limits.trial_timeout
        remaining = None if timeout is None else max(timeout - record.charged, 0.001)
        self._remarks.start(event, record.trial)
        segment = event.segment
        if segment.costs is not None and segment.costs.start >= segment.costs.end:
            # The report that ended the last rung reached the end of this one, too.
            key = segment.trial, segment.attempt
            self._handle(Result(*key, segment.start, segment.checkpoint, (), False, 0.0, None))
            return
        lanes = 1 if event.segment.width > 1 or record.alone else self._lanes
        company = () if lanes == 1 else record.company
        self._backend.start(Task(record.trial, event.segment, remaining, lanes, company))

    def _handle(self, message: Message) -> None:
        match message:
            case Progress(reports=reports):
                self._keep_notes(message)
                self._observers.report(reports)
                self._watch(reports)
            case Saved():
                self._note(message)
            case Result() | Lost():
                self._take_end(message)
            case Notice(text=text):
                self._observers.say(text)

    def _keep_notes(self, message: Progress | Result) -> None:
        """Journal the notes of an attempt that are new or have changed: a result repeats those that came live."""
        known = self._sweep_state.record(message.trial).notes
        new = {name: text for name, text in message.notes.items() if known.get(name) != text}
        if new:
            self._note(Noted(message.trial, message.attempt, new))

    def _watch(self, reports: Sequence[Report]) -> None:
        """Cut the segments that the scheduler stops while they run."""
        for segment, reason in self._sweep_state.watch(reports):
            if self._stopping.setdefault((segment.trial, segment.attempt), reason) is reason:
                self._backend.cut(segment.trial, segment.attempt)

    def _take_end(self, ended: Result | Lost) -> None:
        if isinstance(ended, Result):
            self._keep_notes(ended)
            count, seconds = self._segment_seconds
            self._segment_seconds = count + 1, seconds + ended.seconds
            self._remarks.end(ended)
        # A sweep that met a criterion may still continue in this run, which must not lose a trial's worker for ever.
        ending = self._ending is not None and self._ending not in CRITERIA
        stopped = self._stopping.pop((ended.trial, ended.attempt), "")
        proven, shares = self._sweep_state.finished_segments > 0, self._lanes > 1
        rules = Rules(self._sweep_state.sweep, proven, ending, shares, self._backend.workers().wanted, stopped)
        follows = verdict(ended, self._sweep_state.record(ended.trial), rules)
        if follows.message:
            self._observers.say(follows.message)
        for event in follows.events:
            self._note(event)
            if isinstance(event, Failed) and self._sweep_state.record(event.trial).state is TrialState.FAILED:
                self._count_failure(event)
        if follows.mistake is not None:
            self._end_for(follows.mistake)

    def _count_failure(self, event: Failed) -> None:
        """End the sweep if too many trials have failed; requeue those that can run again on resume."""
        mistake = mistake_of(event, self._sweep_state.tally(), self._sweep_state.sweep.limits.max_failures)
        if mistake is None and not self._failing:
            return
        self._failing = True
        for trial in self._sweep_state.failed():
            if self._sweep_state.may_run_again(trial):
                self._note(Retried(trial))
        if mistake is not None:
            self._end_for(mistake)

    def _check(self) -> None:
        """Handle user requests, and check whether the sweep must end early."""
        now = self._backend.now()
        if due := now >= self._next_check or self._journal.is_asked:
            self._next_check = now + self._backend.tick
            self._take_requests()
        if self._ending is not None:
            return
        if self._interrupts.count:
            self._observers.say("ending at the next reports; press Ctrl-C again to end at once")
            self._end("interrupted")
        elif (state := self._sweep_state.stopping.met) is not None:
            self._observers.say(f"{self._sweep_state.stopping.reason}; ending at the next reports")
            self._end(state)
        elif self._time.is_up:
            self._end("max_time")
        elif due:
            self._see_edit()

    def _see_edit(self) -> bool:
        """End the sweep if the code was edited; return whether it was."""
        if (note := self._edited()) is not None:
            self._observers.say(note)
            self._end("interrupted")
        return note is not None

    def _take_requests(self, ending: str | None = None) -> bool:
        """Answer new requests; return whether there were any."""
        for request in (requests := self._journal.requests()):
            self._take_request(request, ending)
        return bool(requests)

    def _take_request(self, request: Request, ending: str | None) -> None:
        """Answer a request, and do those parts of it that only this process can."""
        refused = refusal(request.verb, self._ending or ending, self._time.is_paused)
        steered, *events = answer(request, self._sweep_state, self._where, refused, self._has_checkpoint)
        assert isinstance(steered, Steered), "an answer begins with itself"
        self._note(steered)
        for event in events:
            self._note(event)
        requester = person(request.by) or "someone"
        if request.verb == "cancel" and not steered.refused:
            self._note(Ended("cancelled", f"by {requester}"))
        self._commit()  # also in the middle of a segment, if segments run in this thread
        text = f"{request.verb}, asked by {requester}"
        self._observers.say(text if not steered.refused else f"refused: {text}: {steered.refused}")
        if steered.refused:
            return
        match request.verb:
            case "stop":
                self._end("stopped")
            case "cancel":
                raise Interrupted
            case "pause":
                self._time.pause()
                self._cut(self._sweep_state.running())
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                self._observers.say(f"paused since {since}; continue with: hpsearch resume {self._where}")
            case "resume":
                self._time.resume()
            case "prune":
                pruned = {event.trial for event in events if isinstance(event, Pruned)}
                self._cut([segment for segment in self._sweep_state.running() if segment.trial in pruned])

    def _look(self, last: bool = False) -> None:
        """Show the sweep's state to the observers."""
        now = self._backend.now()
        if last or now >= self._next_look:
            self._next_look = now + self._backend.tick
            self._observers.look(self._sweep_state, self._backend.workers(), self._time.elapsed, last)

    def _end_for(self, mistake: HpsearchError) -> None:
        self._mistake = self._mistake or mistake
        self._end("error")

    def _end(self, state: str) -> None:
        self._ending = state
        self._cut(self._sweep_state.running())

    def _cut(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._backend.cut(segment.trial, segment.attempt)
