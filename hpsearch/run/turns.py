"""A study that several processes advance in turns. Each call reads what the others wrote, and writes once."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hpsearch.decision import Followed
from hpsearch.errors import JournalError, SweepError
from hpsearch.events import ASK_TELL, Asked, Ended, Event, Exhausted, Extended, Opened, Saved, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal, Request
from hpsearch.journal.provenance import command_line, process_name
from hpsearch.objective import Metric
from hpsearch.run.steering import answer
from hpsearch.run.study_run import create_study, storage_errors, sweep_to_run
from hpsearch.schedulers.base import Done
from hpsearch.study.state import Next, SweepState
from hpsearch.study.warm_start import stored_warm_start
from hpsearch.sweep.parts import Limits
from hpsearch.sweep.sweep import Sweep

_PATIENCE = 60.0
"""Seconds to wait for another process's turn; a searcher that learns may think for as long as some of them."""


class Turn:
    """A study that is locked by one call: its events are applied, and journaled together at the end.

    Args:
        sweep_state: The state after the journal's events.
        finished: Whether there is nothing more to start, by the journal's last event.
    """

    def __init__(self, sweep_state: SweepState, finished: bool) -> None:
        self.sweep_state = sweep_state
        self.finished = finished
        self.noted: list[tuple[Event, Followed]] = []
        """Applied events that aren't journaled yet."""
        self.touched = False
        """Whether the state may be ahead of the journal."""

    def note(self, event: Event) -> None:
        """Apply an event, to journal it at the end."""
        self.touched = True
        self.noted.append((event, self.sweep_state.apply(event)))
        self.finished = event == Ended("finished")

    def open(self) -> None:
        """Open the study for asking: the first time, or after it was finished."""
        self.note(Opened(ASK_TELL, None, process_name(), command_line()))

    def next(self) -> Next:
        """Return what can start now, or why nothing can; record preceding events, and the sweep's end."""
        self.touched = True
        self.sweep_state.prepare()
        while isinstance(answer := self.sweep_state.next(), Asked | Exhausted):
            self.note(answer)
        if isinstance(answer, Done):
            self.note(Ended("finished"))
        return answer

    def settle(self) -> None:
        """Record the sweep's end, as far as known without asking a searcher that learns."""
        while isinstance(answer := self.sweep_state.next(), Exhausted):
            self.note(answer)
        if isinstance(answer, Done):
            self.note(Ended("finished"))


class Turns:
    """Locks a study for one call after the other.

    Args:
        study_dir: The study's directory; created if missing.
        sweep: The requested sweep; None: the study's.
        text: The sweep file.

    Raises:
        SweepError: The sweep differs from the study's.
        JournalError: There is neither a study nor a sweep; or workers have run the study's trials.
    """

    def __init__(self, study_dir: StudyDirectory, sweep: Sweep | None, text: str | None) -> None:
        self.since: dict[int, float] = {}
        """Time of the last `ask` or `report` of open trials, in seconds since the epoch."""
        if sweep is not None and sweep.early_terminate is not None and sweep.early_terminate.capabilities.live:
            raise SweepError(
                "early_terminate.type: must be one that judges trials where they pause, got "
                f"{sweep.early_terminate.kind}, which stops them while they run: who asks for trials tells of them "
                "when they have ended"
            )
        if sweep is not None and sweep.resource is not None:
            raise SweepError(
                f"early_terminate.resource: must not be given with ask and tell, got {sweep.resource}: who asks for "
                "trials needs to know the iteration at which they end. Leave it out, or run the sweep"
            )
        self._study_dir = study_dir
        self._lock = threading.Lock()
        self._state: Turn | None = None
        self._end: tuple[int, int] | None = None  # last entry of the journal that the state includes
        self._metric: Metric | tuple[Metric, ...] | None = None if sweep is None else sweep.metric
        self._limits: Limits | None = None if sweep is None else sweep.limits
        if not study_dir.exists():
            make_study(study_dir, sweep, text)
        with self._locked() as journal:
            turn, more = self._loaded(journal, sweep)
            if self._end == (0, 0) or (more is not None and turn.finished):
                turn.open()
            if more is not None:
                turn.note(more)
            self._write(journal, turn)
        self._state = turn

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Hold the study with its state up to date; what was noted is written at the end, all of it or nothing.

        Raises:
            StudyInUseError: Another process has kept it for a minute.
        """
        with self._locked() as journal:
            turn = self._state
            if turn is None or self._end != journal.end:
                if turn is not None:
                    turn.sweep_state.close()
                turn, _ = self._loaded(journal, None)
            self._state = turn
            try:
                yield turn
                self._write(journal, turn)
            finally:
                # The call failed after it had applied events that aren't journaled; or a new searcher must be told all.
                if turn.touched or turn.sweep_state.is_stale:
                    self._state = None
                    turn.sweep_state.close()

    def close(self) -> None:
        """Close the searcher; the next call reads the study again."""
        with self._lock:
            if self._state is not None:
                self._state.sweep_state.close()
            self._state = None

    @contextmanager
    def _locked(self) -> Iterator[Journal]:
        with (
            self._lock,
            storage_errors(self._study_dir),
            self._study_dir.running(process_name(), _PATIENCE),
            Journal.open(self._study_dir.journal) as journal,
        ):
            yield journal

    def _loaded(self, journal: Journal, requested: Sweep | None) -> tuple[Turn, Extended | None]:
        """Read the study; also return the extension that the user requests."""
        history = list(journal.entries())
        opened = next((entry.event for entry in history if isinstance(entry.event, Opened)), None)
        if opened is not None and opened.backend != ASK_TELL:
            raise JournalError(
                f"{self._study_dir.path}: workers have run the trials of this study, so they can't be asked for. "
                f"Resume it with `hpsearch resume {shlex.quote(str(self._study_dir.path))}`, or make another study "
                "for ask and tell."
            )
        record = journal.study()
        stored = Sweep.from_json(record["sweep"])
        sweep, more = sweep_to_run(stored, history, requested)
        if self._metric is not None and self._limits is not None:
            sweep = replace(sweep, metric=self._metric, limits=self._limits, read_back=True)
        sweep_state = SweepState(stored, past=stored_warm_start(record).past, current=sweep)
        self.since.clear()
        for entry in sweep_state.resume(history):
            self._remember(entry.event, entry.time)
        self._end = journal.end
        return Turn(sweep_state, bool(history) and history[-1].event == Ended("finished")), more

    def _write(self, journal: Journal, turn: Turn) -> None:
        if turn.noted:
            events, followed = zip(*turn.noted, strict=True)
            for (_, when), event in zip(journal.append(events, followed), events, strict=True):
                self._remember(event, when)
            turn.noted.clear()
            self._end = journal.end
        turn.touched = False

    def _remember(self, event: Event, when: float) -> None:
        match event:
            case Started(segment=segment):
                self.since[segment.trial] = when
            case Saved(trial=trial):
                self.since[trial] = when


def make_study(study_dir: StudyDirectory, sweep: Sweep | None, text: str | None) -> None:
    """Create a study if there is none. Safe if another process does the same at the same time.

    Raises:
        JournalError: There is no sweep to create it from, or the directory contains something else.
    """
    if sweep is None:
        raise JournalError(
            f"{study_dir.path}: expected a study's directory, but there is none, and no sweep to make one of"
        )
    if sweep.storage is not None:
        raise SweepError(
            f"storage: must not be given with ask and tell, got {sweep.storage}: no process stays to copy the study. "
            "Leave it out"
        )
    try:
        create_study(sweep, study_dir.path, text)
    except JournalError:
        if not study_dir.exists():  # else another process has created it
            raise


def steer_idle(study_dir: StudyDirectory, request: Request, where: str) -> Steered:
    """Lock a study, journal the events of a request, and return the answer.

    Args:
        study_dir: The study's directory.
        request: The request, which isn't in the journal.
        where: The directory, quoted for a shell.

    Raises:
        StudyInUseError: A process runs it.
        SweepError: The request is refused; nothing is written.
        JournalError: The journal can't be read or doesn't replay.
    """
    with (
        storage_errors(study_dir),
        study_dir.running(request.by),
        Journal.open(study_dir.journal) as journal,
    ):
        record = journal.study()
        sweep_state = SweepState(Sweep.from_json(record["sweep"]), past=stored_warm_start(record).past)
        try:
            for _ in sweep_state.resume(journal.entries()):
                pass
            steered, *events = answer(request, sweep_state, where, has_checkpoint=study_dir.has_checkpoint)
            assert isinstance(steered, Steered), "an answer begins with itself"
            if steered.refused:
                raise SweepError(steered.refused)
            events.insert(0, steered)
            journal.append(events, [sweep_state.apply(event) for event in events])
            return steered
        finally:
            sweep_state.close()
