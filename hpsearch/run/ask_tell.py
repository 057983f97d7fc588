"""Ask and tell: hpsearch suggests trials, which run anywhere, and receives their results."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hpsearch.errors import SweepError, TellError, TrainableError
from hpsearch.events import Lost, Pruned, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Request
from hpsearch.journal.provenance import process_name
from hpsearch.results.study import Study
from hpsearch.run.steering import answer
from hpsearch.run.telling import (
    AskedTrial,
    Metrics,
    asked_trial,
    check_reports,
    open_segment,
    reports_of,
)
from hpsearch.run.turns import Turn, Turns, steer_idle
from hpsearch.run.verdicts import Rules, verdict
from hpsearch.study.stopping import too_many
from hpsearch.study.trial_record import TrialRecord
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Result
from hpsearch.trainable.failures import failure_of_message
from hpsearch.trial import TrialState


class AskTell:
    """A study whose trials run anywhere: ask for a trial, run it, tell its result.

    Any number of processes may use the same study at the same time. Calls run in sequence, and each call sees the
    results of all earlier ones. A trial stays open until its result is told or it is given up, even if the
    process that asked for it ends. Calls are atomic, even if their process is killed.

    Args:
        sweep: A `Sweep`, or the path of a sweep file; it needn't have a trainable. If the directory has a study, it
            must be that study's sweep, or an extension. None: the directory's.
        directory: The study's directory; created if missing.

    Raises:
        SweepError: The sweep is invalid, or differs from the study's.
        JournalError: There is neither a study nor a sweep; or workers have run the study's trials.
    """

    def __init__(self, sweep: Sweep | str | Path | None = None, *, directory: str | Path) -> None:
        self._study_dir = StudyDirectory(Path(directory).expanduser())
        text = None
        if isinstance(sweep, str | Path):
            path = Path(sweep).expanduser()
            sweep = load_sweep(path, runs=False)
            text = path.read_text(encoding="utf-8")
        self._turns = Turns(self._study_dir, sweep, text)
        self._finished = False
        self._reason = ""

    def __enter__(self) -> AskTell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the searcher, the only resource that is kept between calls. A later call starts it again."""
        self._turns.close()

    @property
    def directory(self) -> Path:
        """The study's directory, for `hpsearch.load`."""
        return self._study_dir.path

    @property
    def finished(self) -> bool:
        """Whether the sweep is finished, as of the last call."""
        return self._finished

    @property
    def reason(self) -> str:
        """Why the sweep is finished, if `metric.target` or `limits.patience` ended it; else empty."""
        return self._reason

    def ask(self) -> AskedTrial | None:
        """Return a trial to run: a new one, or one to continue.

        Returns:
            The trial; None if there is none until open trials are told, or for good if `finished`.

        Raises:
            TrainableError: More trials have failed than `limits.max_failures` allows.
            SearcherError: The searcher has failed.
            StudyInUseError: Another process has locked the study for a minute.
            TellError: This process is a rank of a process group of torch.distributed, and not the first.
        """
        _check_first_rank()
        with self._turn() as turn:
            if turn.finished or turn.sweep_state.stopping.met is not None:
                return None
            _check_failures(turn)
            answer = turn.next()
            if not isinstance(answer, Started):
                return None
            turn.note(answer)
            opened = asked_trial(turn.sweep_state.record(answer.segment.trial), turn.sweep_state.sweep.parameters)
        return opened

    def tell(
        self,
        trial: AskedTrial | int,
        reports: Metrics | float | Iterable[Metrics] = (),
        *,
        iteration: int | None = None,
        ended: bool = False,
        failed: str | None = None,
        attempt: int | None = None,
    ) -> TrialState:
        """Tell the results of an open trial, which closes it; return the trial's state.

        Args:
            trial: A trial of `ask`, or its number.
            reports: One report per iteration, from `trial.start + 1` to `trial.end` or the last completed iteration.
                Each report maps names to numbers, and contains all of the sweep's metrics. A single mapping is one
                report. A number is one report of a sweep with a single metric.
            iteration: Iteration of the only report: `trial.end`, if only that iteration was measured.
            ended: Whether the trial ended before `trial.end`.
            failed: Why it failed, in place of reports: it is returned again by `ask`, up to `limits.max_retries` times.
            attempt: The attempt, if `trial` is a number that `ask` returned more than once.

        Raises:
            TellError: The trial isn't open, or the iterations are wrong. Nothing was recorded.
            TrainableError: A report has values that aren't numbers, or lacks a metric. Nothing was recorded.
            StudyInUseError: Another process has locked the study for a minute.
        """
        with self._turn() as turn:
            names = turn.sweep_state.sweep.objective.names
            normalized = reports_of(reports, names)
            if failed is not None and (normalized or ended or iteration is not None):
                raise TellError("`failed` must be given alone, got reports, too; pass earlier reports to report(...)")
            record = _open(turn, trial, attempt)
            seconds = self._seconds(record)
            if failed is None:
                turn.note(check_reports(record, names, normalized, iteration, seconds, ends=ended))
            else:
                _fail(turn, record, failed, seconds)
            turn.settle()
        return record.state

    def report(
        self,
        trial: AskedTrial | int,
        metrics: Metrics | float,
        *,
        iteration: int | None = None,
        attempt: int | None = None,
    ) -> TrialState:
        """Tell the next iteration of an open trial. The report of iteration `trial.end` closes the trial.

        If `trial.end` is None, a final `tell` closes it. Arguments and errors are those of `tell`.
        """
        with self._turn() as turn:
            record = _open(turn, trial, attempt)
            names, seconds = turn.sweep_state.sweep.objective.names, self._seconds(record)
            normalized = [metrics] if isinstance(metrics, list | tuple) else reports_of(metrics, names)
            turn.note(check_reports(record, names, normalized, iteration, seconds, ends=False, goes_on=True))
            turn.settle()
        return record.state

    def give_up(self, trial: AskedTrial | int, why: str = "given up", *, attempt: int | None = None) -> None:
        """Give up an open trial, without counting it as failed: `ask` returns it again.

        Reported iterations count, and the next attempt starts after them.

        Raises:
            TellError: The trial isn't open.
        """
        with self._turn() as turn:
            record = _open(turn, trial, attempt)
            assert record.segment is not None
            seconds = self._seconds(record)
            turn.note(Lost(record.trial.number, record.segment.attempt, why, False, seconds))

    def retry(self, *trials: int) -> None:
        """Retry these failed trials, or all of them, by the rules of `hpsearch retry`.

        Raises:
            SweepError: One of them hasn't failed, or `run_cap` leaves no room for it.
        """
        self.steer("retry", {"trials": list(trials)})

    def steer(self, verb: str, details: Mapping[str, Any]) -> None:
        """Do the same as the commands `hpsearch extend`, `add`, `prune`, `change` and `retry`, by the same rules.

        An open trial that is pruned is given up for good.

        Args:
            verb: `extend`, `add`, `prune`, `change` or `retry`.
            details: `run_cap` and `brackets`; `points`, a list of names to values; `trials`, a list of numbers; or
                `set`, a list of `KEY=VALUE`, and `from_trial`.

        Raises:
            HpsearchError: The request is refused. Nothing was recorded.
        """
        request = Request(time.time(), verb, process_name(), details)
        with self._turn() as turn:
            steered, *events = answer(request, turn.sweep_state, shlex.quote(str(self._study_dir.path)))
            if isinstance(steered, Steered) and steered.refused:
                raise SweepError(steered.refused)
            if turn.finished:
                turn.open()
            turn.note(steered)
            for event in events:
                record = turn.sweep_state.record(event.trial) if isinstance(event, Pruned) else None
                if record is not None and record.segment is not None:
                    turn.note(Lost(record.trial.number, record.attempts, "pruned", False, self._seconds(record)))
                turn.note(event)
            if not turn.sweep_state.is_stale:
                turn.settle()

    def open_trials(self) -> list[AskedTrial]:
        """Return the open trials, by number; `start` is their last reported iteration."""
        with self._turn() as turn:
            state = turn.sweep_state
            space = state.sweep.parameters
            return [asked_trial(state.record(segment.trial), space) for segment in state.running()]

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        with self._turns.turn() as turn:
            yield turn
        self._finished = turn.finished or turn.sweep_state.stopping.met is not None
        self._reason = turn.sweep_state.stopping.reason

    def _seconds(self, record: TrialRecord) -> float:
        """Return the seconds since a trial's last `ask` or `report`; another computer's clock may be ahead."""
        return max(time.time() - self._turns.since[record.trial.number], 0.0)


def steer(study: Study, verb: str, details: Mapping[str, Any], where: str = "") -> Mapping[str, Any]:
    """Answer a request for a study that no process runs; return the request's details, as answered.

    Args:
        study: The study.
        verb: See `AskTell.steer`.
        details: See `AskTell.steer`.
        where: The study's directory, quoted for a shell; empty: its path.

    Raises:
        StudyInUseError: A process runs it.
        HpsearchError: The request is refused. Nothing was recorded.
    """
    if study.is_told:
        with AskTell(directory=study.directory) as asking:
            asking.steer(verb, details)
        return details
    request = Request(time.time(), verb, process_name(), details)
    return steer_idle(StudyDirectory(study.directory), request, where or shlex.quote(str(study.directory))).details


def _check_first_rank() -> None:
    """Check that not every rank of a distributed training asks for a trial.

    Independent processes may ask, even if a launcher started them.
    """
    distributed = sys.modules.get("torch.distributed")  # unless it is imported there is no group
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if (rank := distributed.get_rank()) > 0:
        raise TellError(
            f"ask: must be called on rank 0 of the process group of torch.distributed alone, but this is rank {rank}, "
            "which would be given another trial than rank 0. Send rank 0's trial to the others: "
            "torch.distributed.broadcast_object_list([trial])"
        )


def _open(turn: Turn, trial: AskedTrial | int, attempt: int | None) -> TrialRecord:
    """Return the record of an open trial.

    Raises:
        TellError: The trial isn't open.
    """
    if isinstance(trial, AskedTrial):
        number, attempt = trial.number, trial.attempt
    else:
        number = trial
    count = sum(turn.sweep_state.counts().values())
    if not 0 <= number < count:
        existing = f"there are trials 0 to {count - 1}" if count else "none was asked for yet"
        raise TellError(f"trial {number} was never asked for; {existing}")
    record = turn.sweep_state.record(number)
    open_segment(record, attempt)
    return record


def _fail(turn: Turn, record: TrialRecord, why: str, seconds: float) -> None:
    """Handle a failure by the rules of sweeps that workers run."""
    assert record.segment is not None
    line = next(iter(why.strip().splitlines()), "") or "told as failed"
    failure = failure_of_message(line, why if why.strip() != line else "")
    ended = Result(
        record.trial.number, record.segment.attempt, record.result.iterations, None, (), False, seconds, failure
    )
    for event in verdict(ended, record, Rules(turn.sweep_state.sweep)).events:
        turn.note(event)


def _check_failures(turn: Turn) -> None:
    tally = turn.sweep_state.tally()
    if too_many(tally, turn.sweep_state.sweep.limits.max_failures):
        raise TrainableError(
            f"{tally.failed} of the {tally.tried} trials that were told have failed, so `ask` returns no more: fix "
            "the cause and retry them, or ignore failures with limits.max_failures: none"
        )
