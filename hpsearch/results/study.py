"""The results of a study, read from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError, UnreadableCheckpointError
from hpsearch.events import Entry, Event, Failed, Finished, Lost, Reverted, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.history import HistoryEntry, steps
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import Labels, labels_of
from hpsearch.journal.provenance import identity_of
from hpsearch.objective import Objective, values_of
from hpsearch.results.best import BestTrial, hypervolumes, no_best, weighted
from hpsearch.results.course import Course, course
from hpsearch.results.over_time import Stage, lineage, over_iterations
from hpsearch.results.segments import SegmentRow, segment_rows
from hpsearch.schedulers.base import RungView
from hpsearch.space import Space
from hpsearch.storage.bucket import is_url
from hpsearch.storage.studies import copy_of
from hpsearch.study.journaled_state import JournaledState, no_collections
from hpsearch.study.standing import Standing
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, Score, TrialRow, TrialState

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from hpsearch.page.page import Picture
    from hpsearch.results.rerun import Rerun

T = TypeVar("T")
_Entries = Callable[[], Iterator[Entry]]

__all__ = ["BestTrial", "Study", "load", "study_of"]

_MOST_IN_MEMORY = 512 * 1024**2
"""Largest journal, in bytes, whose entries are kept in memory."""


@dataclass(eq=False)
class Study:
    """The results of a study, as of the time at which its journal was read.

    Other packages format, plot and write them. Methods here only call those packages.
    """

    directory: Path
    sweep: Sweep
    """The sweep, including its extensions."""
    state: str
    """State of the study in one word; `Standing.ended` lists the states."""
    message: str
    """Details of the state. `error`: the error's text; `target`, `patience`: why the study ended; `paused`,
    `cancelled`: when and by whom."""
    provenance: dict[str, Any]
    """Git commit, command line, packages and environment of the process that created the study."""
    created: float
    """Time of the study's creation, in seconds since the epoch."""
    _journaled: JournaledState
    _entries: _Entries
    """Reads the journal."""
    _rerun: dict[str, Any] | None = None
    """A rerun's record of the original study; None if this study isn't a rerun."""
    spaces: tuple[Space, ...] = ()
    """The search space as the study was created, and that of each change; the last one is the sweep's."""

    def __repr__(self) -> str:
        counts = self._journaled.counts()
        trials = ", ".join(f"{counts[state]} {state}" for state in TrialState if counts.get(state))
        return f"<Study {self.sweep.name} in {self.directory}: {self.state}; {trials or 'no trials'}>"

    @property
    def location(self) -> str:
        """What commands take to find the study: its directory, or of a copy the URL in the bucket."""
        return StudyDirectory(self.directory).copied_from() or str(self.directory)

    @property
    def identity(self) -> str:
        """Identity of the study, independent of its path: from its name, its creation time and the process."""
        return identity_of(self.sweep.name, self.created, self.provenance)

    @property
    def trials(self) -> list[TrialRow]:
        """All trials, by number."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> list[TrialRow]:
        return self._journaled.rows()

    @cached_property
    def ranked(self) -> list[TrialRow]:
        """All trials, best first; trials without a value come last. With repeats, by the value of the configuration."""
        order = self.sweep.objective.rank({row.number: row.standing for row in self._rows})
        return [self._rows[number] for number in order]

    @cached_property
    def configurations(self) -> list[TrialRow]:
        """In a study with repeats, the last trial of each configuration, best first; else empty.

        Configurations without a value come last: those with more repeats first, as the others were eliminated sooner.
        """
        last = {row.repeated.configuration: row for row in self._rows if row.repeated is not None}
        counts = {row.number: row.repeated.n for row in last.values() if row.repeated is not None}
        order = self.sweep.objective.rank({row.number: row.standing for row in last.values()})
        rows = [self._rows[number] for number in order]
        return sorted(rows, key=lambda row: (row.standing is None, -counts[row.number] * (row.standing is None)))

    def repeated_values(self, configuration: int) -> list[float]:
        """Return the values of a configuration's repeats that have one, by repeat, if there is one goal."""
        scores = (record.valid_score for record in self._journaled.records.repeats(configuration))
        return [values_of(score)[0] for score in scores if score is not None]

    def mean_metrics(self, configuration: int) -> Mapping[str, float]:
        """Return the means of the metrics that decide a configuration's value, or the quantiles that are asked for."""
        return self._journaled.records.mean_metrics(configuration)

    @property
    def count(self) -> int:
        """Number of trials."""
        return len(self._journaled.records)

    @property
    def labels(self) -> Labels:
        """The current `tags` and `note` of the study, as `hpsearch tag` and `hpsearch note` wrote them."""
        study_dir = StudyDirectory(self.directory)
        return labels_of(study_dir) if study_dir.exists() else Labels()  # a study in memory has no directory

    @property
    def rungs(self) -> list[RungView]:
        """The rungs of the brackets begun so far."""
        return list(self._journaled.rungs())

    @property
    def iterations(self) -> int:
        """Number of iterations that count, including repetitions from zero."""
        return self._journaled.iterations

    @property
    def total(self) -> tuple[int, int] | None:
        """(trials, iterations) of the whole sweep; None if it has no bound, or never ran."""
        return self._journaled.total

    @property
    def is_told(self) -> bool:
        """Whether it is an ask/tell study, whose trials run elsewhere."""
        return self._journaled.is_ask_tell

    @property
    def best_trial(self) -> BestTrial:
        """The feasible trial with the best value; ties go to the lower number.

        Raises:
            HpsearchError: There is no such trial, or there are several goals.
        """
        if self.sweep.objective.several:
            raise HpsearchError(
                f"{self.directory}: {self._title} decide together, so that there is no best trial: `best_trials` are "
                "those that no other is better than, `best_by(weights)` is the best one by weights"
            )
        return self.best_trials[0]

    @property
    def _title(self) -> str:
        return self.sweep.objective.title

    @property
    def best_trials(self) -> list[BestTrial]:
        """The Pareto front: non-dominated feasible trials, by number; with one goal, the best trial.

        Raises:
            HpsearchError: No trial has a value and satisfies all constraints.
        """
        leaders = self.leaders
        if not leaders or not leaders[0].feasible:
            raise no_best(self.directory, self.sweep.objective, self.trials, leaders)
        return [self._best(row) for row in leaders]

    @property
    def leaders(self) -> list[TrialRow]:
        """The rows of `best_trials`; if no trial is feasible, the one with the least violation."""
        return self._journaled.leaders()

    def best_by(self, weights: Mapping[str, float]) -> BestTrial:
        """Return the feasible trial with the best weighted sum of its values; ties go to the lower number.

        Args:
            weights: Weight of each metric, at least 0; a missing metric has weight 0.

        Raises:
            HpsearchError: No trial has a value and satisfies all constraints; or the weights are invalid.
        """
        worth = weighted(self.trials, self.sweep.objective, weights)
        if not worth:
            raise no_best(self.directory, self.sweep.objective, self.trials, self.leaders)
        return self._best(self.trials[min(worth, key=lambda number: (-worth[number], number))])

    def hypervolumes(self, reference: Mapping[str, float] | None = None) -> list[tuple[float, int, float]]:
        """Return the Pareto front's hypervolume over time: (seconds since creation, total iterations, hypervolume).

        There is one entry per change of the front: at a checkpoint or a segment's end, or when a trial fails, is
        retried or reverted.

        Args:
            reference: Reference value of each metric; by default the sweep's `metric.reference`, or the worst value of
                any trial of the front.

        Raises:
            HpsearchError: A reference is for an unknown metric, or isn't finite.
        """
        return hypervolumes(self.sweep, self._entries(), self.created, reference)

    def _best(self, row: TrialRow) -> BestTrial:
        names = (goal.name for goal in self.sweep.objective.goals)
        values = dict(zip(names, row.values, strict=True))
        return BestTrial(row.number, values, self.sweep.parameters.nest(row.params), self.checkpoint_path(row))

    def save_best(self, folder: str | Path, force: bool = False) -> list[Path]:
        """Write the best trial's params and its checkpoint; return the paths.

        Args:
            folder: Folder for `trial.json` and the checkpoint; or a file for `torch.load`, with the suffix `.pt` or
                `.pth`.
            force: Whether to replace files that were saved there before.

        Raises:
            HpsearchError: There is no best trial; it has no checkpoint, or none that can be saved as one file; or the
                files can't be written.
        """
        from hpsearch.export.saving import save_trial

        return save_trial(self, self.best_trial, Path(folder), force)

    @property
    def names(self) -> tuple[str, ...]:
        """Flat names of the params, in order: those of all trials, then those of only some trials."""
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
        """Results of a rerun; None if this study isn't one."""
        from hpsearch.results.rerun import Rerun

        return None if self._rerun is None else Rerun(self, self._rerun)

    def trials_dataframe(self, times: bool = False, metrics: bool = False, notes: bool = False) -> pd.DataFrame:
        """Return every trial as a row: `trial, state, iterations, value, params.<name>, width`.

        With several goals the columns `values.<name>` replace `value`. Outcome constraints add a column `feasible`.

        Args:
            times: Add the running time in seconds.
            metrics: Add all metrics reported at `iterations`, as `metrics.<name>`.
            notes: Add what the trials noted, as `notes.<name>`.
        """
        from hpsearch.tables.trials import trials_dataframe

        return trials_dataframe(self.trials, self.names, times, metrics, self.sweep.objective, notes)

    def checkpoint_path(self, row: TrialRow) -> Path | None:
        """Return the path of a trial's checkpoint as the user saved it; None if it is missing, deleted or damaged.

        A checkpoint that shares a file with others is extracted. Without write permission, the path points into that
        file.
        """
        try:
            return self._checkpoint_path(row)
        except UnreadableCheckpointError:
            return None

    @property
    def needed_checkpoints(self) -> set[str]:
        """Addresses of the checkpoints that are kept: the best ones, and those of trials that may run on."""
        return self._journaled.records.checkpoints()

    def why_no_checkpoint(self, trial: int) -> str:
        """Return why a trial has no readable checkpoint."""
        try:
            self._checkpoint_path(self.trials[trial])
        except UnreadableCheckpointError as error:
            return str(error)
        return "none was saved with its value, or it was deleted as others were better"

    def _checkpoint_path(self, row: TrialRow) -> Path | None:
        from hpsearch.trainable.checkpoints import shown_path

        address = row.address or row.checkpoint
        return None if address is None else shown_path(self.directory / address)

    def curves(self, metric: str | None = None) -> dict[int, list[tuple[int, float]]]:
        """Return each trial's metric over its iterations, from the reports that count; reported NaNs are NaN.

        Args:
            metric: Any reported metric; iterations without it are skipped. None: the objective's metric.

        Raises:
            HpsearchError: No report has this metric; or `metric` is None, and there are several goals.
        """
        names = self.sweep.objective.names
        if metric is None and not names:
            raise HpsearchError(f"{self.directory}: expected the name of a metric, as the sweep names none")
        if metric is None and self.sweep.objective.several:
            raise HpsearchError(f"{self.directory}: expected the name of a metric, as {self._title} decide together")
        name = names[0] if metric is None else metric
        reported = dict.fromkeys(names)  # in the order of reporting

        def read(report: Report) -> float | None:
            reported.update(dict.fromkeys(report.metrics))
            return report.metrics.get(name)

        curves = over_iterations(self._entries(), read)
        if name not in reported:
            raise HpsearchError(f"{self.directory}: no report holds a metric {name!r}; {nearest(name, reported)}")
        return curves

    def reports(self) -> dict[int, list[Report]]:
        """Return each trial's reports that count, by iteration."""
        by_trial = over_iterations(self._entries(), lambda report: report)
        return {trial: [report for _, report in reports] for trial, reports in by_trial.items()}

    def scores(self, objective: Objective | None = None) -> dict[int, list[tuple[int, Score]]]:
        """Return each trial's scores over its iterations, from the reports that count; reported NaNs are NaN.

        Args:
            objective: Objective of the scores; None: the sweep's. Reports without its metrics are left out.
        """
        requested = objective or self.sweep.objective
        return over_iterations(self._entries(), lambda report: requested.reported(report.metrics))

    def course(self) -> Course:
        """Return the course of the best trial, or of the Pareto front, over trials, iterations and seconds."""
        return self._course

    @cached_property
    def _course(self) -> Course:
        return course(self.sweep, self._entries())

    def row(self, trial: int | None = None) -> TrialRow:
        """Return a trial.

        Args:
            trial: Number of the trial; None: the best trial, if there is one goal.

        Raises:
            HpsearchError: There is no such trial; or `trial` is None, and there are several goals.
        """
        if trial is None and self.sweep.objective.several:
            raise HpsearchError(f"{self.directory}: expected the number of a trial, as {self._title} decide together")
        rows, number = self.trials, self.best_trial.number if trial is None else trial
        if not 0 <= number < len(rows):
            raise HpsearchError(f"{self.directory}: expected the number of one of {len(rows)} trials, got {number}")
        return rows[number]

    def network(self, trial: int | None = None) -> nn.Module:
        """Return a trial's network with the weights that produced its value, on the CPU and in evaluation mode.

        Args:
            trial: Number of the trial; None: the best trial, if there is one goal.

        Raises:
            HpsearchError: There is no such trial; it has no checkpoint of a network that
                `hpsearch_trainers.architectures.network` created; or the weights don't match the network.
        """
        from hpsearch.results.trial_network import trial_network

        return trial_network(self, trial).module()

    def metrics_of(self, row: TrialRow) -> Mapping[str, float]:
        """Return all metrics of the report that gave the trial's value; without a value, those of its last report."""
        return self._journaled.records.of(row.number).result.scored or row.metrics

    def lineage(self, trial: int | None = None) -> tuple[Stage, ...]:
        """Return the stages of a trial's training: its ancestors' params and its own, each with its iterations.

        Args:
            trial: Number of the trial; None: the best trial, if there is one goal.

        Raises:
            HpsearchError: There is no such trial; or `trial` is None, and there are several goals.
        """
        rows, number = self.trials, self.row(trial).number
        names = {goal.name for goal in self.sweep.objective.goals}

        def deciding(report: Report) -> dict[str, float]:
            return {name: value for name, value in report.metrics.items() if name in names}

        return lineage(rows, number, over_iterations(self._entries(), deciding))

    def times(self) -> dict[int, tuple[float, float | None]]:
        """Return the times of each trial's first start and last end, in seconds since the epoch.

        The end is None if no segment of the trial has ended.
        """
        began: dict[int, float] = {}
        ended: dict[int, float] = {}
        for entry in self._entries():
            match entry.event:
                case Started(segment=segment):
                    began.setdefault(segment.trial, entry.time)
                case Finished(trial=trial) | Failed(trial=trial) | Lost(trial=trial) | Reverted(trial=trial):
                    ended[trial] = entry.time
        return {trial: (when, ended.get(trial)) for trial, when in began.items()}

    def segments(self) -> list[SegmentRow]:
        """Return every segment, with its width and the reason for it, in order of start."""
        return segment_rows(self.events(), live=self.state in ("running", "paused", "open"))

    def history(self) -> list[HistoryEntry]:
        """Return who ran and steered the study, when, and with what result."""
        with Journal.read(StudyDirectory(self.directory).journal) as journal:
            return steps(self._entries(), journal.all_requests())

    def events(self) -> Iterator[Event]:
        """Return an iterator over the study's events, from the first one on."""
        return (entry.event for entry in self._entries())

    def entries(self) -> Iterator[Entry]:
        """Return an iterator over the journal's entries: the events with their decisions, from the first one on."""
        return self._entries()

    @contextmanager
    def entries_in_memory(self) -> Iterator[None]:
        """Read the journal only once for all methods within the block. A journal above 512 MiB is read each time.

        Decoding entries takes most of the time of a report page. In memory, entries need about three times their size
        on disk.
        """
        read, journal = self._entries, StudyDirectory(self.directory).journal
        if not journal.exists() or journal.stat().st_size <= _MOST_IN_MEMORY:
            entries = list(read())
            self._entries = lambda: iter(entries)
        try:
            yield
        finally:
            self._entries = read

    def plot_history(self) -> Picture:
        """Plot every trial's value and the best so far; with several goals the hypervolume of the Pareto front."""
        return self._plot("history")

    def plot_curves(self, metric: str | None = None) -> Picture:
        """Plot the learning curves, coloured by the trial's last rung.

        Args:
            metric: A metric of the objective; None: the first one.
        """
        return self._plot("curves", metric)

    def plot_front(self) -> Picture:
        """Plot the Pareto front of several goals."""
        return self._plot("front")

    def plot_parameters(self) -> Picture:
        """Plot the trials as parallel coordinates of their parameters."""
        return self._plot("parameters")

    def plot_importance(self, metric: str | None = None) -> Picture:
        """Plot the parameter importances, by fANOVA.

        Args:
            metric: A metric of the objective; None: the first one.
        """
        return self._plot("importance", metric)

    def plot_brackets(self) -> Picture:
        """Plot the number of trials and the workers per trial over the rungs of each bracket."""
        return self._plot("brackets")

    def plot_workers(self) -> Picture:
        """Plot what the workers ran over time."""
        return self._plot("workers")

    def _plot(self, name: str, metric: str | None = None) -> Picture:
        from hpsearch.page.page import plot

        return plot(self, name, metric)

    def _repr_html_(self) -> str:
        """Show the study in a notebook."""
        from hpsearch.page.page import notebook_html

        return notebook_html(self)


def load(directory: str | Path) -> Study:
    """Load a study. Another process may run it at the same time.

    Args:
        directory: Its directory, or its URL in a bucket, `s3://bucket/folder`, of which the journal is copied.

    Raises:
        JournalError: The directory has no study, or this version can't read it.
        StorageError: The bucket can't be read.
    """
    study_dir = StudyDirectory(copy_of(directory) if is_url(directory) else Path(directory))
    before = study_dir.exists() and study_dir.holder()

    def entries() -> Iterator[Entry]:
        with Journal.read(study_dir.journal) as journal:
            yield from journal.entries()

    with Journal.read(study_dir.journal) as journal:
        # Checked before and after reading, as a process may start or end meanwhile.
        return study_of(
            study_dir.path, journal.study(), journal.entries(), lambda: bool(before or study_dir.holder()), entries
        )


def study_of(
    path: Path, record: dict[str, Any], history: Iterable[Entry], is_live: Callable[[], bool], entries: _Entries
) -> Study:
    """Return a study from a journal's entries.

    Args:
        path: The study's directory.
        record: The study's record, written before its first run.
        history: The journal's current entries.
        is_live: Returns whether a process runs the study. It is called after the history was read.
        entries: Reads the journal again, for methods that need more.
    """
    sweep = Sweep.from_json(record["sweep"])
    journaled, standing = JournaledState(sweep), Standing(sweep)
    with no_collections():
        for entry in journaled.read(history):
            standing.take(entry)
    # The process that runs the study does this after each commit: it deletes what is no longer needed.
    journaled.obsolete()
    ended = standing.ended(live := is_live())
    if not live and ended.state != "open":
        journaled.leave(ended)
    provenance, created = record.get("provenance", {}), record.get("created", 0.0)
    return Study(
        path,
        standing.sweep,
        ended.state,
        ended.message,
        provenance,
        created,
        journaled,
        entries,
        record.get("rerun"),
        tuple(standing.spaces),
    )
