"""Writes a running sweep for TensorBoard: the best and the running trials, the study, and the HParams dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.config.checks import InvalidKey
from hpsearch.decision import Followed
from hpsearch.events import Entry, trial_of
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.hparams import HParams
from hpsearch.observers.tensorboard.study_runs import STUDY_RUN, StudyRuns, layout
from hpsearch.observers.tensorboard.trial_runs import metrics_of
from hpsearch.schedulers.base import RungView
from hpsearch.study.trial_record import DECIDED
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report

MOST_TRIALS = 100
"""Number of best trials that have a run. Running trials also have runs."""


class TensorBoardObserver(Observer):
    """Writes TensorBoard's event files below a directory. It clears the directory first: the replay writes all again.

    Each trial is a run, and the study is another run: see `StudyRuns`. Live reports are written as they arrive. A run
    is a folder and a file, so only the best hundred trials and the running ones are written. Other trials that wait, or
    that failed and may be retried, are kept in memory. Other ended trials are dropped. `hpsearch tensorboard --all`
    shows all.

    Args:
        observed: The study. Its folder `tensorboard` is TensorBoard's `--logdir`, and contains nothing else.
    """

    deadline = 300.0  # it may have to rewrite a whole study

    def __init__(self, observed: Observed) -> None:
        self._sweep, self._created = observed.sweep, observed.created
        self._hparams = HParams(
            observed.spaces or [self._sweep.parameters], may_fork(self._sweep), repeats=self._sweep.repeats.several
        )
        self._files = EventFiles(observed.directory / "tensorboard")
        self._runs = StudyRuns(
            self._files, self._sweep, self._hparams, has_run=lambda trial: trial not in self._dropped
        )
        self._best: set[int] = set()
        self._changed: set[int] = set()
        """Trials that changed since they were last compared with the best."""
        self._dropped: set[int] = set()

    def seen(self) -> int:
        """Clear the output of earlier runs, and request all records from the first one."""
        self._files.clear([STUDY_RUN, "[0-9][0-9][0-9]*"])
        self._files.create(STUDY_RUN, self._created)
        experiment = self._hparams.experiment(self._sweep.name, metrics_of(self._sweep), self._created)
        for value in (experiment, layout([self._sweep], repeated=False)):
            self._files.summary(STUDY_RUN, self._created, value)
        self._files.flush()
        return 0

    def observe(self, record: Record) -> None:
        """Receive a record, in the order of the journal."""
        self._runs.take(Entry(record.time, record.event, Followed(record.decisions)))
        self._changed.update(decision.trial for decision in record.decisions)
        if (trial := trial_of(record.event)) is not None:
            self._changed.add(trial)
        if len(self._changed) >= MOST_TRIALS:
            self._choose()

    def report(self, reports: Sequence[Report]) -> None:
        """Receive live reports of running attempts."""
        self._runs.report(reports)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Write the number of trials that ran to each rung's iteration, over all brackets, if it changed."""
        self._runs.rungs(rungs)

    def flush(self) -> None:
        """Write buffered records."""
        self._choose()
        self._runs.flush()
        self._files.flush()

    def _choose(self) -> None:
        """Update the best trials, and which runs are written, after changes of trials."""
        records, compared = self._runs.journaled.records, self._best | self._changed
        scores = {trial: records.of(trial).valid_score for trial in compared}
        self._best = set(self._sweep.objective.rank(scores)[:MOST_TRIALS])
        self._changed.clear()
        for trial in compared - self._dropped:
            run = self._runs.run_of(trial)
            assert run is not None
            if trial in self._best or trial in records.running:
                self._files.restore(run)
            elif records.of(trial).state in DECIDED:
                self._files.drop(run)
                self._dropped.add(trial)
            else:
                self._files.set_aside(run)

    def close(self) -> None:
        """Write buffered records, and the status of failed trials."""
        self._runs.settle()
        self.flush()


def may_fork(sweep: Sweep) -> bool:
    """Return whether trials may be forked from others."""
    try:
        return sweep.forks
    except InvalidKey:  # a finished study can be shown without the code of its searcher
        return True
