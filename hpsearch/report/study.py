"""What came of a sweep, read from its journal: by the process that ran it, or by any other."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.checks import nearest
from hpsearch.errors import HpsearchError, UnreadableCheckpointError
from hpsearch.events import Ended, Event, Extended, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.report.lineage import Stage, lineage
from hpsearch.report.segments import SegmentRow, segment_rows
from hpsearch.schedulers.base import RungView
from hpsearch.study.directory import StudyDirectory
from hpsearch.study.extension import extended
from hpsearch.study.journal import Journal
from hpsearch.study.journaled_state import Entry, JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow, TrialState

if TYPE_CHECKING:
    import pandas as pd

    from hpsearch.report.rerun import Rerun

__all__ = ["BestTrial", "Study", "load", "stored_sweep", "study_of"]


@dataclass(frozen=True, slots=True)
class BestTrial:
    """The best trial of a study."""

    number: int
    value: float
    params: dict[str, Any]
    """As the trainable saw them, groups nested."""
    checkpoint: Path | None
    """A file for `torch.load`, or what the trainable wrote; None where none was saved, or it was deleted."""


@dataclass(eq=False)
class Study:
    """A study as its journal told it when it was read."""

    directory: Path
    sweep: Sweep
    """The sweep, with what it was extended by."""
    state: str
    """`running`, `finished`, `target`, `patience`, `interrupted`, `stopped`, `max_time` or `error`; `open`: its trials
    are asked for and told of, by whoever comes."""
    message: str
    """What the state `error` was; of `target` and `patience`, why the sweep ended."""
    provenance: dict[str, Any]
    """Git commit, command line, packages and environment of the process that made the study."""
    created: float
    """When, in seconds since the epoch."""
    _journaled: JournaledState
    _entries: Callable[[], Iterator[Entry]]
    """Reads the journal."""
    _rerun: dict[str, Any] | None = None
    """What it recorded of the study whose configurations it runs again."""

    def __repr__(self) -> str:
        counts = self._journaled.counts()
        told = ", ".join(f"{counts[state]} {state}" for state in TrialState if counts.get(state))
        return f"<Study {self.sweep.name} in {self.directory}: {self.state}; {told or 'no trials'}>"

    @property
    def identity(self) -> str:
        """Which study this is, wherever it lies: its name, when it was made and by which process."""
        return f"{self.sweep.name} {self.created!r} {self.provenance.get('process', '')}"

    @property
    def trials(self) -> list[TrialRow]:
        """Every trial, by number."""
        return self._journaled.rows()

    @property
    def rungs(self) -> list[RungView]:
        """The rungs of the brackets begun so far."""
        return list(self._journaled.rungs())

    @property
    def iterations(self) -> int:
        """Iterations that count, those run again from zero included."""
        return self._journaled.iterations

    @property
    def total(self) -> tuple[int, int] | None:
        """(trials, iterations) of the whole sweep; None where it has no bound, or never ran."""
        return self._journaled.total

    @property
    def is_told(self) -> bool:
        """Whether its trials run elsewhere, and are asked for and told of."""
        return self._journaled.told

    @property
    def best_trial(self) -> BestTrial:
        """The trial with the best value; ties go to the lower number.

        Raises:
            HpsearchError: No trial has a value.
        """
        row = self._journaled.best()
        if row is None or row.value is None:
            failed = self._journaled.counts().get(TrialState.FAILED, 0)
            raise HpsearchError(
                f"{self.directory}: no trial has a value of {self.sweep.metric.name!r} yet ({failed} failed). "
                f"`hpsearch trials {shlex.quote(str(self.directory))}` shows what became of each."
            )
        return BestTrial(row.number, row.value, self.sweep.parameters.nest(row.params), self.checkpoint_path(row))

    @property
    def names(self) -> tuple[str, ...]:
        """Flat names of the params, in order: those that every trial has, and those that any has."""
        return self.sweep.parameters.columns(row.params for row in self.trials)

    @property
    def best_params(self) -> dict[str, Any]:
        """The best trial's params."""
        return self.best_trial.params

    @property
    def best_value(self) -> float:
        """The best trial's value."""
        return self.best_trial.value

    @property
    def rerun(self) -> Rerun | None:
        """What came of running the best configurations of another study again; None where this is no rerun."""
        from hpsearch.report.rerun import Rerun

        return None if self._rerun is None else Rerun(self, self._rerun)

    def trials_dataframe(self, times: bool = False, metrics: bool = False) -> pd.DataFrame:
        """Give every trial as a row: `trial, state, iterations, value, params.<name>, width`.

        Args:
            times: Add the running time in seconds.
            metrics: Add all that was reported at `iterations`, as `metrics.<name>`.
        """
        from hpsearch.report.tables import trials_dataframe

        return trials_dataframe(self.trials, self.names, times, metrics)

    def checkpoint_path(self, row: TrialRow) -> Path | None:
        """Give a trial's checkpoint as the user reads it; None where there is none, or it was deleted or is damaged."""
        from hpsearch.trainable.checkpoints import user_path

        if row.checkpoint is None:
            return None
        try:
            return user_path(self.directory / row.checkpoint)
        except UnreadableCheckpointError:
            return None

    def curves(self, metric: str | None = None) -> dict[int, list[tuple[int, float]]]:
        """Give each trial's metric over its iterations, of the reports that count; NaN where NaN was reported.

        Args:
            metric: Any that was reported; iterations that didn't report it are left out. None: the sweep's own.

        Raises:
            HpsearchError: No report holds this metric.
        """
        name = self.sweep.metric.name if metric is None else metric
        known = {self.sweep.metric.name: None}  # in the order of reporting
        points: dict[int, dict[int, float]] = defaultdict(dict)
        sound: dict[int, dict[int, float]] = {}
        """Of trials that failed, what counts where they run again."""
        for entry in self._entries():
            match event := entry.event:
                case Saved() | Finished() | Failed(retry=False):
                    if isinstance(event, Failed):
                        sound[event.trial] = dict(points[event.trial])
                    for report in event.reports:
                        known.update(dict.fromkeys(report.metrics))
                        if name in report.metrics:
                            points[report.trial][report.iteration] = report.metrics[name]
                case Reverted(trial=trial, iteration=last):
                    points[trial] = {i: value for i, value in points[trial].items() if i <= last}
            for decision in entry.followed.decisions:
                if decision.action == "withdraw":
                    points[decision.trial] = sound.pop(decision.trial)
        if name not in known:
            raise HpsearchError(f"{self.directory}: no report holds a metric {name!r}; {nearest(name, known)}")
        return {trial: sorted(curve.items()) for trial, curve in points.items() if curve}

    def lineage(self, trial: int | None = None) -> tuple[Stage, ...]:
        """Give what a trial was trained with: its ancestors' params and its own, each with its iterations.

        Args:
            trial: Its number; None: the best one's.

        Raises:
            HpsearchError: There is no such trial.
        """
        rows, number = self.trials, self.best_trial.number if trial is None else trial
        if not 0 <= number < len(rows):
            raise HpsearchError(f"{self.directory}: expected the number of one of {len(rows)} trials, got {number}")
        return lineage(rows, number, self.curves() if rows else {})

    def times(self) -> dict[int, tuple[float, float | None]]:
        """Give when each trial's first segment began and its last one ended, in seconds since the epoch.

        None stands for the end where no segment of it has ended.
        """
        began: dict[int, float] = {}
        ended: dict[int, float] = {}
        for when, event in self._events():
            match event:
                case Started(segment=segment):
                    began.setdefault(segment.trial, when)
                case Finished(trial=trial) | Failed(trial=trial) | Lost(trial=trial) | Reverted(trial=trial):
                    ended[trial] = when
        return {trial: (when, ended.get(trial)) for trial, when in began.items()}

    def segments(self) -> list[SegmentRow]:
        """Give every segment that was started, with its width and the reason for it, in the order of starting."""
        return segment_rows(self.events(), live=self.state in ("running", "open"))

    def events(self) -> Iterator[Event]:
        """Read what happened, from the first event on."""
        return (event for _, event in self._events())

    def _events(self) -> Iterator[tuple[float, Event]]:
        return ((entry.time, entry.event) for entry in self._entries())


def load(directory: str | Path) -> Study:
    """Read a study, also while another process runs it.

    Raises:
        JournalError: There is none in this directory, or this version can't read it.
    """
    place = StudyDirectory(Path(directory))
    live = place.exists() and place.holder() is not None

    def entries() -> Iterator[Entry]:
        with Journal.read(place.journal) as journal:
            yield from journal.entries()

    with Journal.read(place.journal) as journal:
        return study_of(place.path, journal.study(), journal.entries(), live, entries)


def study_of(
    path: Path, record: dict[str, Any], history: Iterable[Entry], live: bool, entries: Callable[[], Iterator[Entry]]
) -> Study:
    """Give a study from what a journal holds.

    Args:
        path: Where it lies.
        record: What was known of it before it ran.
        history: The journal's entries, as they are now.
        live: A process runs it.
        entries: Reads the journal again, when the study is asked for more.
    """
    sweep = stored_sweep(record)
    journaled = JournaledState(sweep)
    unended = ended = Ended("running" if live else "interrupted")
    for entry in journaled.read(history):
        match event := entry.event:
            case Opened():
                ended = unended
            case Ended():
                ended = event
            case Extended():
                sweep = extended(sweep, event)
    # As the process that runs it does after each commit: what nothing needs is gone, or about to go.
    journaled.obsolete()
    if journaled.told and ended is unended:
        ended = Ended("open")  # what was asked for stays with who asked, whether a process is there or not
    elif not live:
        # Nobody runs what was running when the last process died.
        journaled.apply(ended)
    provenance, created = record.get("provenance", {}), record.get("created", 0.0)
    return Study(path, sweep, ended.state, ended.message, provenance, created, journaled, entries, record.get("rerun"))


def stored_sweep(record: dict[str, Any]) -> Sweep:
    """Give the sweep that a study was created with."""
    return Sweep.from_json(record["sweep"])
