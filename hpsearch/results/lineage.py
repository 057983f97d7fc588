"""A trial's ancestors, with their ranges of iterations and their params."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpsearch.trial import Params, TrialRow

__all__ = ["Stage", "lineage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a training, with the params of one trial."""

    trial: int
    start: int
    """Iterations that were done when it began."""
    end: int
    """Its last iteration: where its fork began, or the trial's last one."""
    values: Mapping[str, float]
    """Deciding metrics at `end`; NaN if NaN was reported; metrics without a report are missing."""
    params: Params


def lineage(
    rows: Sequence[TrialRow], trial: int, curves: Mapping[int, Iterable[tuple[int, Mapping[str, float]]]]
) -> tuple[Stage, ...]:
    """Return the stages of a trial's training, the first ancestor's first.

    Where nothing was taken over from a parent, since it had no checkpoint, training began with the fork itself. A child
    that inherited weights counts its iterations from 0 again.

    Args:
        rows: All trials, by number.
        trial: The last one's number.
        curves: Trial to (iteration, metrics that decide) of what was reported.
    """
    stages: list[Stage] = []
    row, end = rows[trial], rows[trial].iterations
    while True:
        values = dict(curves.get(row.number, ())).get(end, {})
        stages.append(Stage(row.number, row.start, end, values, row.params))
        if row.parent is None or row.inherited is None:
            return tuple(reversed(stages))
        end, row = row.inherited, rows[row.parent]
