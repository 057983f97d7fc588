"""The report of a design, as JSON and as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.tables.wording import counted, duration, number


@dataclass(frozen=True, slots=True)
class TestScore:
    """A score on the test rows."""

    value: float
    interval: Sequence[float] | None
    """95 % confidence interval over the sampling of the test rows; None if there is none."""

    def __str__(self) -> str:
        if self.interval is None:
            return number(self.value)
        return f"{number(self.value)} (95 %: {number(self.interval[0])} to {number(self.interval[1])})"


@dataclass(frozen=True, slots=True)
class DesignReport:
    """Results of a design. Scores are values of the metric `goal`."""

    goal: str
    better: str
    """`minimize` or `maximize`."""
    test: TestScore
    """Score of the delivered files."""
    all_scores: Mapping[str, float]
    """Every score of this kind of task on the test rows."""
    baseline: TestScore
    """Score of a baseline that predicts the search rows' most frequent class, or their mean."""
    baseline_is: str
    trees: TestScore | None
    """Score of the kind of trees that is best on the validated rows; None if there was no time to train trees."""
    trees_are: str
    validation: float
    """Validation score of the best trial. It is optimistic, as the best of many."""
    trees_validation: float | None
    trees_win: bool
    """Whether trees are better than the network on the validated rows; test rows aren't used for this."""
    trial: int
    trials: int
    epochs: int
    params: Mapping[str, Any]
    cost: Mapping[str, float]
    """`parameters`, and `latency_ms` for one row."""
    broken: Sequence[str]
    """Limits that the delivered network exceeds."""
    search_rows: int
    test_rows: int
    notes: Sequence[str]
    seconds: float

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DesignReport:
        """Read a report from its values in report.json."""
        scores = {name: values[name] and TestScore(**values[name]) for name in ("test", "baseline", "trees")}
        return cls(**{**values, **scores})

    def text(self, folder: Path) -> str:
        """Return the report as text, with commands to copy; `folder` is the design's folder, for display."""
        program, study = (shlex.quote(str(folder / name)) for name in ("model/predict.py", "study"))
        lines = [
            f"test rows:    {self.goal} {self.test}, on {counted(self.test_rows, 'row')} that the search never saw",
            f"baseline:     {self.goal} {self.baseline}, {self.baseline_is}",
        ]
        if self.trees is not None:
            lines.append(f"trees:        {self.goal} {self.trees}, {self.trees_are} with default settings")
        lines += [
            f"validated:    {self.goal} {number(self.validation)}, trial {self.trial}, the best of {self.trials}"
            + ("" if self.trees_validation is None else f"; the trees {number(self.trees_validation)}"),
            f"network:      {counted(int(self.cost['parameters']), 'parameter')}, "
            f"{number(self.cost['latency_ms'])} ms a row, {counted(self.epochs, 'epoch')} on "
            f"{counted(self.search_rows, 'row')}",
        ]
        lines += [f"over limit:   {broken}" for broken in self.broken]
        if self.trees_win:
            lines += [
                "The trees did better on the validated rows: take them, unless it must be a network:",
                f"              python {program} NEW --trees",
            ]
        lines += [f"note:         {note}" for note in self.notes]
        lines += [
            f"predict:      hpsearch predict {shlex.quote(str(folder))} NEW",
            f"              python {program} NEW",
            f"trials:       hpsearch trials {study}",
            f"took:         {duration(self.seconds)}",
        ]
        return "\n".join(lines) + "\n"
