"""Open trials, and checks of told results: pure functions of a trial's record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import TellError
from hpsearch.events import Finished, Saved
from hpsearch.space import Space
from hpsearch.study.trial_record import TrialRecord
from hpsearch.trainable.metrics import to_numbers
from hpsearch.trial import Params, Parent, Report, Segment, TrialState

Metrics = Mapping[str, Any]
"""Names to numbers, NumPy's and torch's scalars included."""


def reports_of(results: Metrics | float | Iterable[Metrics], names: tuple[str, ...]) -> list[Metrics]:
    """Return told results as a list of reports.

    Args:
        results: Several reports; or one, as a mapping or as the number that is the sweep's only metric.
        names: The sweep's metrics.
    """
    if isinstance(results, Mapping):
        return [results]
    if isinstance(results, Iterable) and getattr(results, "shape", None) != ():  # a scalar of NumPy's or torch's has ()
        return list(results)
    only: Any = {names[0]: results} if len(names) == 1 else results  # invalid reports are refused with an example
    return [only]


@dataclass(frozen=True)
class AskedTrial:
    """A trial from `ask`: its params, and the iterations to run."""

    number: int
    attempt: int
    """Number of times that `ask` returned the trial, from 1."""
    params: dict[str, Any]
    """Params as a trainable sees them, with nested groups."""
    flat: Params
    """The same by flat names, such as `optimizer.lr`."""
    seed: int
    """Derived from the sweep's seed and the trial's number."""
    start: int
    """Number of iterations that were told already, in earlier rungs and in attempts that were given up."""
    end: int | None
    """Last iteration to run; None where the sweep has no `max_iter`: as long as the training takes."""
    parent: Parent | None = None
    """Parent of a forked trial; you keep its state, so `checkpoint` is None."""


def asked_trial(record: TrialRecord, space: Space) -> AskedTrial:
    """Return an open trial."""
    trial, segment = record.trial, record.segment
    assert segment is not None, "only an open trial was asked for"
    return AskedTrial(
        trial.number,
        segment.attempt,
        space.nest(trial.params),
        dict(trial.params),
        trial.seed,
        record.result.iterations,
        segment.end,
        trial.parent,
    )


def open_segment(record: TrialRecord, attempt: int | None) -> Segment:
    """Return the open segment.

    Args:
        record: The trial's record.
        attempt: The attempt; None: the only one.

    Raises:
        TellError: The trial isn't open, or the attempt is ambiguous.
    """
    number, segment = record.trial.number, record.segment
    if attempt is not None and not 1 <= attempt <= record.attempts:
        raise TellError(f"trial {number} was given out in attempts 1 to {record.attempts}, got attempt {attempt}")
    if segment is None:
        raise TellError(f"trial {number} isn't open: {_why_not_open(record)}")
    if attempt is None and segment.attempt > 1:
        # A late call for an earlier attempt or rung would otherwise count for this one.
        raise TellError(
            f"trial {number} was given out {segment.attempt} times: say which attempt is meant, by the number that "
            f"came with it (attempt={segment.attempt} is the open one; on the command line --attempt)"
        )
    if attempt is not None and attempt != segment.attempt:
        raise TellError(
            f"attempt {attempt} of trial {number} isn't open any more: it has ended or was given up; the open attempt "
            f"is {segment.attempt}"
        )
    return segment


def check_reports(
    record: TrialRecord,
    names: tuple[str, ...],
    reported: Sequence[Metrics],
    iteration: int | None,
    seconds: float,
    *,
    ends: bool,
    goes_on: bool = False,
) -> Finished | Saved:
    """Check reports of a trial's open segment; return their event, which is `Finished` if they end the segment.

    Args:
        record: The trial's.
        names: The sweep's metrics, which each report must hold.
        reported: One report per iteration, from the one after the last told.
        iteration: Iteration of the only report; it may be the segment's last, even if earlier ones were never told.
        seconds: Running time of all of them.
        ends: The trial ended, perhaps before its segment's end.
        goes_on: Whether more reports may follow. If not, these must complete the segment.

    Raises:
        TellError: The iterations are wrong.
        TrainableError: A report has values that aren't numbers, or lacks a metric.
    """
    number, segment, last_told = record.trial.number, record.segment, record.result.iterations
    assert segment is not None, "only an open trial is told of"
    end = segment.end
    first = _first(record, segment, reported, iteration)
    last = first + len(reported) - 1 if reported else last_told
    if end is not None and last > end:
        raise TellError(f"trial {number} is to run to iteration {end}, got a report of iteration {last}")
    if not reported and not ends:
        raise TellError(f"trial {number}: at least one report is needed, got none{_HINT_FAILED}")
    if not reported and last_told == record.trial.start:
        raise TellError(f"trial {number}: a trial that ended must have a report, but has none{_HINT_FAILED}")
    reaches = end is not None and last == end
    if end is not None and not (reaches or ends or goes_on):
        raise TellError(_too_few(number, last_told, last, end))
    reports = tuple(
        Report(number, first + index, to_numbers(metrics, names), seconds / len(reported))
        for index, metrics in enumerate(reported)
    )
    if reaches or ends or (end is None and not goes_on):
        return Finished(number, segment.attempt, last, None, reports, False, seconds)
    return Saved(number, segment.attempt, last, None, reports)


_HINT_FAILED = "; tell one without a result with failed='why'"


def _first(record: TrialRecord, segment: Segment, reported: Sequence[Metrics], iteration: int | None) -> int:
    """Return the iteration of the first report."""
    number, last_told = record.trial.number, record.result.iterations
    if iteration is None:
        return last_told + 1
    if len(reported) != 1:
        raise TellError(f"trial {number}: `iteration` belongs to one report, got {len(reported)} of them")
    if iteration <= last_told:
        raise TellError(f"trial {number}: iteration {iteration} was told already; the next one is {last_told + 1}")
    alone = last_told == segment.start and iteration == segment.end
    if iteration > last_told + 1 and not alone and (segment.end is None or iteration <= segment.end):
        or_last = "" if segment.end is None or last_told > segment.start else f", or {segment.end} alone"
        raise TellError(f"trial {number}: iteration {last_told + 1} comes next{or_last}; got {iteration}")
    return iteration


def _too_few(number: int, last_told: int, last: int, end: int) -> str:
    missing = f"iteration {end} is" if last + 1 == end else f"iterations {last + 1} to {end} are"
    alone = "" if last > last_told + 1 else f"the last one alone with iteration={end}, "
    return (
        f"trial {number} is to run to iteration {end}, and {missing} missing: tell all of them, {alone}"
        "one by one with report(...), or say ended=True if it ended by itself"
    )


def _why_not_open(record: TrialRecord) -> str:
    match record.state:
        case TrialState.COMPLETE | TrialState.STOPPED:
            return f"it was told and is {record.state}"
        case TrialState.FAILED:
            return f"it has failed: {record.reason}"
    return "its segment has ended or was given up, and `ask` returns the next one if it continues"
