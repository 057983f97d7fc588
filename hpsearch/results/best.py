"""The best trials of a study: the Pareto front, its hypervolume over time, and the best trial by weights."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.events import Entry
from hpsearch.objective import Metric, Objective, hypervolume, values_of
from hpsearch.results.course import course
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score, TrialRow, TrialState


@dataclass(frozen=True, slots=True)
class BestTrial:
    """The best trial of a study, or a trial of its Pareto front."""

    number: int
    values: dict[str, float]
    """Values of the objective's metrics, by name."""
    params: dict[str, Any]
    """The trainable's params, with nested groups."""
    checkpoint: Path | None
    """A file for `torch.load`, or the file or folder that the trainable wrote; None if there is none, or it was
    deleted."""

    @property
    def value(self) -> float:
        """The value of the metric, if the objective has only one.

        Raises:
            HpsearchError: There are several.
        """
        if len(self.values) != 1:
            raise HpsearchError(f"trial {self.number} has a value of each of {', '.join(self.values)}: see `values`")
        return next(iter(self.values.values()))


def no_best(
    directory: Path, objective: Objective, rows: Sequence[TrialRow], leaders: Sequence[TrialRow]
) -> HpsearchError:
    """Return an error that explains why a study has no best trial.

    Args:
        directory: The study's directory.
        objective: The sweep's objective.
        rows: All trials.
        leaders: The best trials if all break constraints; empty if no trial has a value.
    """
    look = f"hpsearch trials {shlex.quote(str(directory))}"
    if not objective.goals:
        return HpsearchError(
            f"{directory}: the sweep names no metric, so no trial is the best. `{look}` shows what each reported."
        )
    if not leaders:
        failed = sum(row.state is TrialState.FAILED for row in rows)
        metrics = " and ".join(repr(goal.name) for goal in objective.goals)
        if any(row.repeated is not None for row in rows):
            return HpsearchError(
                f"{directory}: no configuration has a value of {metrics} in all its repeats yet ({failed} trials "
                f"failed). `{look}` shows what became of each; `hpsearch retry` runs failed ones again."
            )
        return HpsearchError(
            f"{directory}: no trial has a value of {metrics} yet ({failed} failed). `{look}` shows what became of each."
        )
    broken = " and ".join(objective.broken(leaders[0].score))
    return HpsearchError(
        f"{directory}: no trial keeps all outcome_constraints; trial {leaders[0].number} breaks them least "
        f"({broken}). `{look}` shows all: loosen the constraint, or give the search more trials."
    )


def weighted(rows: Sequence[TrialRow], objective: Objective, weights: Mapping[str, float]) -> dict[int, float]:
    """Return the weighted sum of each feasible trial's values; higher is better.

    Values of minimized metrics count negatively.

    Args:
        rows: The trials.
        objective: The sweep's objective.
        weights: Weight of each metric, at least 0; a missing one is 0.

    Raises:
        HpsearchError: The weights are invalid.
    """
    names = [goal.name for goal in objective.goals]
    if not names:
        raise HpsearchError("weights: expected metrics that decide, but the sweep names none")
    for name, weight in weights.items():
        if name not in names:
            raise HpsearchError(f"weights: expected metrics that decide, got {name!r}; {nearest(name, names)}")
        if not 0 <= weight < math.inf:
            raise HpsearchError(f"weights: expected a finite number of at least 0 for {name}, got {weight!r}")
    if not any(weights.values()):
        raise HpsearchError("weights: expected a weight of more than 0, got none")
    worth = [(index, weights[goal.name], goal) for index, goal in enumerate(objective.goals) if weights.get(goal.name)]
    sums = {
        row.number: 0.0 - sum(weight * goal.signed(values_of(row.standing)[index]) for index, weight, goal in worth)
        for row in rows
        if objective.is_feasible(row.standing)
    }
    # inf - inf is NaN, which can't be ranked: such a trial comes last.
    return {number: -math.inf if math.isnan(total) else total for number, total in sums.items()}


def hypervolumes(
    sweep: Sweep, entries: Iterator[Entry], created: float, references: Mapping[str, float] | None
) -> list[tuple[float, int, float]]:
    """Return the hypervolume of a study's front over time: (seconds since creation, total iterations, hypervolume).

    Args:
        sweep: Defines the goals.
        entries: The study's journal.
        created: Time of the study's creation, in seconds since the epoch.
        references: Reference value of each metric; by default the sweep's `metric.reference`, or the worst value of any
            trial of the front.

    Raises:
        HpsearchError: A reference is for an unknown metric, or isn't finite.
    """
    objective = sweep.objective
    moments = course(sweep, entries).changes
    scores = [score for moment in moments for score in moment.front]
    reference = reference_point(objective.goals, references or {}, scores)
    return [
        (moment.time - created, moment.iterations, hypervolume(list(map(objective.point, moment.front)), reference))
        for moment in moments
    ]


def reference_point(
    goals: Sequence[Metric], references: Mapping[str, float], scores: Sequence[Score]
) -> tuple[float, ...]:
    """Return the reference point of a hypervolume, signed so that lower is better.

    Args:
        goals: The goals.
        references: Reference value of each metric; by default the goal's `reference`, or the worst finite value of the
            scores.
        scores: Scores of all fronts.

    Raises:
        HpsearchError: A reference is for an unknown metric, or isn't finite.
    """
    names = [goal.name for goal in goals]
    for name, value in references.items():
        if name not in names:
            raise HpsearchError(f"reference: expected metrics that decide, got {name!r}; {nearest(name, names)}")
        if not math.isfinite(value):
            raise HpsearchError(f"reference: expected a finite number for {name}, got {value!r}")
    points = []
    for index, goal in enumerate(goals):
        finite = [value for score in scores if math.isfinite(value := goal.signed(values_of(score)[index]))]
        reference = references.get(goal.name, goal.reference)
        points.append(max(finite, default=0.0) if reference is None else goal.signed(reference))
    return tuple(points)
