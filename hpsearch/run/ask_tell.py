"""Ask and tell: hpsearch says what to try and is told what came of it, wherever trials run."""

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
from hpsearch.events import Finished, Lost, Pruned, Saved, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.provenance import process_name
from hpsearch.journal.requests import Request
from hpsearch.run.steering import answer
from hpsearch.run.telling import AskedTrial, Metrics, Told, asked_trial, open_segment, reports_of, taken
from hpsearch.run.turns import Turn, Turns
from hpsearch.run.verdicts import Rules, verdict
from hpsearch.study.stopping import too_many
from hpsearch.study.trial_record import TrialRecord
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Result
from hpsearch.trial import Failure, TrialState

__all__ = ["AskTell"]


class AskTell:
    """A study whose trials run anywhere: ask what to try, run it, tell what came of it.

    Any number of processes may have the same study open, at the same time: each call takes its turn, and knows what all
    others have told. What was asked for stays open, whatever becomes of the process that asked, until it is told or
    given up. Each call is whole or not there, also where its process is killed.

    Args:
        sweep: A `Sweep`, or the path of a sweep file; it needn't say what runs a trial. Where the directory holds a
            study it must be that study's, or extend it. None: what the directory holds.
        directory: The study's; made where there is none.

    Raises:
        SweepError: The sweep is wrong, or another one than the study's.
        JournalError: There is no study and no sweep to make one of; or workers have run its trials.
    """

    def __init__(self, sweep: Sweep | str | Path | None = None, *, directory: str | Path) -> None:
        self._place = StudyDirectory(Path(directory).expanduser())
        text = None
        if isinstance(sweep, str | Path):
            path = Path(sweep).expanduser()
            sweep = load_sweep(path, runs=False)
            text = path.read_text(encoding="utf-8")
        self._turns = Turns(self._place, sweep, text)
        self._finished = False
        self._reason = ""

    def __enter__(self) -> AskTell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the searcher. Nothing else is held between calls, and a later call goes on."""
        self._turns.close()

    @property
    def directory(self) -> Path:
        """The study's, for `hpsearch.load`."""
        return self._place.path

    @property
    def finished(self) -> bool:
        """Whether the sweep has nothing more to give, as the last call knew."""
        return self._finished

    @property
    def reason(self) -> str:
        """Why it has nothing more to give, where `metric.target` or `limits.patience` says so; else empty."""
        return self._reason

    def ask(self) -> AskedTrial | None:
        """Give a trial to run: a new one, or one that is to go on.

        Returns:
            None: nothing, until some of the open trials are told; or for good, where `finished` says so.

        Raises:
            TrainableError: Too many trials have failed, as `limits.max_failures` says.
            SearcherError: The searcher has failed.
            StudyInUseError: Another process has kept the study for a minute.
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
            given = asked_trial(turn.sweep_state.record(answer.segment.trial), turn.sweep_state.sweep.parameters)
        return given

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
        """Tell all that came of an open trial, which ends what was asked for; answer how the trial stands then.

        Args:
            trial: What `ask` gave, or its number.
            reports: One per iteration, from the one after `trial.start` to `trial.end`, or as many as there were; each
                maps names to numbers, and holds the sweep's metrics. A single mapping is one report. A number is one
                report of a sweep with a single metric.
            iteration: Of the only report: `trial.end`, where only that was measured.
            ended: The trial ended by itself before `trial.end`.
            failed: Why it failed, instead of reports: it is asked for again as often as `limits.max_retries` says.
            attempt: Which one is meant, where `trial` is the number of one that was given out more than once.

        Raises:
            TellError: The trial isn't open, or these aren't the iterations that are to be told. Nothing was taken.
            TrainableError: A report doesn't hold numbers, and the sweep's metrics among them. Nothing was taken.
            StudyInUseError: Another process has kept the study for a minute.
        """
        with self._turn() as turn:
            names = turn.sweep_state.sweep.objective.names
            given = reports_of(reports, names)
            if failed is not None and (given or ended or iteration is not None):
                raise TellError("why a trial failed is told alone, got reports, too; report(...) what came before it")
            record = _open(turn, trial, attempt)
            seconds = self._seconds(record)
            if failed is None:
                _take(turn, record, taken(record, names, given, iteration, seconds, ends=ended), seconds)
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
        """Tell one iteration of an open trial, the next one; that of `trial.end` ends what was asked for.

        Where `trial.end` is None, a last `tell` ends it. Arguments and errors are those of `tell`.
        """
        with self._turn() as turn:
            record = _open(turn, trial, attempt)
            names, seconds = turn.sweep_state.sweep.objective.names, self._seconds(record)
            given = [metrics] if isinstance(metrics, list | tuple) else reports_of(metrics, names)
            told = taken(record, names, given, iteration, seconds, ends=False, goes_on=True)
            _take(turn, record, told, seconds)
            turn.settle()
        return record.state

    def give_up(self, trial: AskedTrial | int, why: str = "given up", *, attempt: int | None = None) -> None:
        """Say that nothing more will be told of an open trial, by no fault of its own: `ask` gives it out anew.

        Iterations that were reported stay, and the next attempt starts behind them.

        Raises:
            TellError: It isn't open.
        """
        with self._turn() as turn:
            record = _open(turn, trial, attempt)
            assert record.segment is not None
            seconds = self._seconds(record)
            turn.note(Lost(record.trial.number, record.segment.attempt, why, False, seconds))

    def retry(self, *trials: int) -> None:
        """Let failed trials, or all of them, be asked for again, by the rules of `hpsearch retry`.

        Raises:
            SweepError: One of them hasn't failed, or there is no room for it.
        """
        self.steer("retry", {"trials": list(trials)})

    def steer(self, verb: str, details: Mapping[str, Any]) -> None:
        """Do what `hpsearch extend`, `add`, `prune` and `retry` do, by the same rules.

        A trial that is open and pruned is given up, and won't be given out again.

        Args:
            verb: One of these.
            details: `run_cap` and `brackets`; `points`, a list of names to values; or `trials`, a list of numbers.

        Raises:
            HpsearchError: It can't be; nothing was taken.
        """
        request = Request(time.time(), verb, process_name(), details)
        with self._turn() as turn:
            steered, *events = answer(request, turn.sweep_state, shlex.quote(str(self._place.path)))
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
            turn.settle()

    def open_trials(self) -> list[AskedTrial]:
        """Give the trials that were asked for and not told, by number; `start` is what was reported by now."""
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
        """Give how long ago a trial was asked for or told of last; another computer's clock may be ahead."""
        return max(time.time() - self._turns.since[record.trial.number], 0.0)


def _check_first_rank() -> None:
    """See that ranks which train one model together don't each ask for a trial of their own.

    Processes that train apart from each other may ask as they like, whatever has started them.
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
    """Give the record of a trial that is told of.

    Raises:
        TellError: It isn't open.
    """
    if isinstance(trial, AskedTrial):
        number, attempt = trial.number, trial.attempt
    else:
        number = trial
    count = sum(turn.sweep_state.counts().values())
    if not 0 <= number < count:
        known = f"there are trials 0 to {count - 1}" if count else "none was asked for yet"
        raise TellError(f"trial {number} was never asked for; {known}")
    record = turn.sweep_state.record(number)
    open_segment(record, attempt)
    return record


def _take(turn: Turn, record: TrialRecord, told: Told, seconds: float) -> None:
    assert record.segment is not None
    number, attempt = record.trial.number, record.segment.attempt
    if told.ends:
        turn.note(Finished(number, attempt, told.iteration, None, told.reports, False, seconds))
    else:
        turn.note(Saved(number, attempt, told.iteration, None, told.reports))


def _fail(turn: Turn, record: TrialRecord, why: str, seconds: float) -> None:
    """Take a failure by the rules of a sweep that workers run."""
    assert record.segment is not None
    line = next(iter(why.strip().splitlines()), "") or "told as failed"
    failure = Failure("raised", line, why if why.strip() != line else "")
    ended = Result(
        record.trial.number, record.segment.attempt, record.result.iterations, None, (), False, seconds, failure
    )
    for event in verdict(ended, record, Rules(turn.sweep_state.sweep)).events:
        turn.note(event)


def _check_failures(turn: Turn) -> None:
    tally = turn.sweep_state.tally()
    if too_many(tally, turn.sweep_state.sweep.limits.max_failures):
        raise TrainableError(
            f"{tally.failed} of the {tally.tried} trials that were told have failed, so that no more are given out: "
            "mend what is wrong and retry them, or go on whatever fails with limits.max_failures: none"
        )
