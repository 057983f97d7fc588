"""Recorded learning curves as a simulation: a trial replays the row of its params."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey, nearest, plain
from hpsearch.errors import SweepError
from hpsearch.simulation.lookup import ExactRows, NearestRows, check_columns
from hpsearch.simulation.simulation import RecordedFailure, Simulation, Step
from hpsearch.space import Space
from hpsearch.trial import Segment, Trial, Value

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """Recorded curves, as arrays. Runs with equal params are repetitions of one row."""

    columns: Mapping[str, Sequence[Value]]
    """Flat parameter names to a value for each row."""
    metrics: Mapping[str, Floats]
    """Values of each metric, as [rows, repetitions, iterations]."""
    seconds: Floats
    """Seconds of each iteration, as [rows, repetitions, iterations]; NaN: the iteration wasn't run."""
    failures: Sequence[Sequence[str]] = ()
    """Error messages, as [rows][repetitions]; an empty text: the run didn't fail. Empty: no run failed."""

    def __post_init__(self) -> None:
        if not self.metrics or not self.columns:
            raise SweepError("a table must have at least one parameter and one metric")
        if self.seconds.ndim != 3:
            raise SweepError(
                f"a table's seconds must have the axes row, repetition and iteration, got {list(self.seconds.shape)}"
            )
        object.__setattr__(self, "columns", {name: _plain(name, column) for name, column in self.columns.items()})
        rows = {name: len(column) for name, column in self.columns.items()}
        for name, values in {**self.metrics, "seconds": self.seconds}.items():
            rows[name] = len(values)
            if values.shape != self.seconds.shape:
                raise SweepError(
                    "a table's metrics and seconds must be of one shape, "
                    f"but {name} is {list(values.shape)} where seconds is {list(self.seconds.shape)}"
                )
        if self.failures:
            rows["failures"] = len(self.failures)
            if any(len(row) != self.seconds.shape[1] for row in self.failures):
                raise SweepError(f"a table's failures must have {self.seconds.shape[1]} repetitions in each row")
        if len(set(rows.values())) != 1 or not self.seconds.size:
            raise SweepError(f"a table's columns must be of one length, and not empty, got {rows}")
        wrong = (self.seconds < 0) | np.isinf(self.seconds)
        if wrong.any():
            raise SweepError(
                "the seconds of an iteration must be at least 0 and finite, but "
                f"{wrong.sum():,} of {wrong.size:,} aren't: say cumulative: true where each holds those before it, and "
                "cumulative: clipped where such times go back"
            )


def _plain(name: str, column: Sequence[Value]) -> list[Value]:
    usual = {bool, int, float, str, type(None)}
    try:
        return [value if type(value) in usual else plain(value) for value in column]
    except InvalidKey as error:
        raise SweepError(f"the table's column for {name} {error.problem}") from None


def each_iteration(times: Floats, cumulative: bool | Literal["clipped"]) -> Floats:
    """Return the seconds of each iteration from recorded times. Both are [rows, repetitions, iterations]."""
    if not cumulative:
        return times
    if cumulative == "clipped":
        times = np.where(np.isnan(times), np.nan, np.fmax.accumulate(times, axis=2))
    return np.diff(times, axis=2, prepend=0.0)


class Table(Simulation):
    """Replays recorded curves. The params select the row, and the trial's seed selects the repetition.

    Args:
        recorded: The arrays.
        rows: `exact`: a trial whose params have no row ends the sweep; `nearest`: the nearest row in the unit cube is
            used.
    """

    def __init__(self, recorded: Recorded, rows: Literal["nearest", "exact"] = "nearest") -> None:
        self.recorded = recorded
        self._kind = ExactRows if rows == "exact" else NearestRows
        ended = np.isnan(recorded.seconds)
        self.lengths = np.where(ended.any(axis=2), ended.argmax(axis=2), ended.shape[2])
        """Number of iterations that were run, as [rows, repetitions]."""
        ran = self.lengths > 0
        if not ran.any(axis=1).all():
            empty = int(ran.any(axis=1).argmin())
            raise SweepError(f"each row of a table must have an iteration that was run, but row {empty} has none")

    def open(self, space: Space, *metrics: str) -> None:
        """Map the rows to the space.

        Raises:
            SweepError: The table lacks a metric, or the table or the space lacks a parameter.
        """
        super().open(space, *metrics)
        missing = next((name for name in metrics if name not in self.recorded.metrics), None)
        if missing is not None:
            raise SweepError(f"the table has no metric {missing}; {nearest(missing, self.recorded.metrics)}")
        check_columns(self.recorded.columns, space)
        self._rows = self._kind(self.recorded.columns, space)

    def find(self, trial: Trial) -> tuple[int, int]:
        """Return a trial's (row, repetition)."""
        row = self._rows.find(trial.params)
        ran = self.lengths[row].nonzero()[0]
        return row, int(ran[trial.seed % len(ran)])

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Yield the row's iterations after the segment's start."""
        recorded, (row, repetition) = self.recorded, self.find(trial)
        last = int(self.lengths[row, repetition])
        here = slice(segment.start, last if segment.end is None else min(segment.end, last))
        seconds = recorded.seconds[row, repetition, here].tolist()
        metrics = {name: values[row, repetition, here].tolist() for name, values in recorded.metrics.items()}
        for index, took in enumerate(seconds):
            yield Step({name: values[index] for name, values in metrics.items()}, took)
        failure = recorded.failures[row][repetition] if recorded.failures else ""
        if failure and (segment.end is None or segment.end >= last):
            raise RecordedFailure(failure)
