"""All runs of one study: one for each trial, and one for the study as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpsearch.events import Entry
from hpsearch.schedulers.base import RungView
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tensorboard.event_file import EventFiles
from hpsearch.tensorboard.hparams import HParams
from hpsearch.tensorboard.study_run import STUDY_RUN, StudyRun
from hpsearch.tensorboard.trial_runs import TrialRuns, trial_run
from hpsearch.trial import Report

__all__ = ["StudyRuns"]


class StudyRuns:
    """Follows a study's journal, from its first entry on, and writes its runs.

    Times are the journal's: a report's is that of its segment's start and the iterations since, so that what is
    written live and what is written later say the same.

    Args:
        files: Where to.
        sweep: What is run.
        hparams: What is shown of params.
        name: The study's, where there are several in one place; empty: its runs have no folder of their own.
        wanted: Says which trials get a run.
        column: How HParams calls the study; None: it doesn't.
    """

    def __init__(
        self,
        files: EventFiles,
        sweep: Sweep,
        hparams: HParams,
        name: str = "",
        wanted: Callable[[int], bool] = lambda _: True,
        column: str | None = None,
    ) -> None:
        self._folder = f"{name}/" if name else ""
        self.name = f"{self._folder}{STUDY_RUN}"
        """Of the run of the study as a whole."""
        self._trials, self._wanted = sweep.run_cap, wanted
        self.journaled = JournaledState(sweep)
        """How it stands."""
        self.whole = StudyRun(files, self.name, sweep)
        """The study as a whole."""
        self._runs = TrialRuns(files, sweep, hparams, self.run_of, column)

    def run_of(self, trial: int) -> str | None:
        """Give a trial's run; None: it gets none."""
        return f"{self._folder}{trial_run(trial, self._trials)}" if self._wanted(trial) else None

    def take(self, entry: Entry) -> None:
        """Take the next entry of the journal.

        Raises:
            JournalError: It isn't one of this sweep.
        """
        for _ in self.journaled.read([entry]):
            self._runs.take(entry)
            self.whole.take(entry, self.journaled)

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports of attempts that run now."""
        self._runs.report(reports)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Take the state of the rungs."""
        self.whole.rungs(rungs)

    def settle(self) -> None:
        """Take it that nobody runs the study, so that what has failed stays so."""
        self._runs.settle()

    def flush(self) -> None:
        """Write how it stands."""
        self._runs.flush(self.journaled)
        self.whole.flush()
