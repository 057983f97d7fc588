"""What a sweep searches for: which reports are worth what, and how trials rank by them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from operator import mul
from typing import Any, TypeGuard

from hpsearch.objective.fronts import Fronts, Point, dominates, undominated
from hpsearch.objective.metric import Metric
from hpsearch.objective.outcome_constraint import OutcomeConstraint
from hpsearch.trial import JointScore, Score

__all__ = ["Objective", "Place", "excesses_of", "is_valid", "values_of"]

Place = tuple[float, ...]
"""What orders scores, the less the better."""

_FEASIBLE, _BROKEN, _NAN, _NONE = range(4)
"""In this order: a number, one that breaks constraints, what is no number, and what has failed."""


def values_of(score: Score) -> tuple[float, ...]:
    """Give the value of each goal."""
    return score.values if isinstance(score, JointScore) else (score,)


def excesses_of(score: Score) -> tuple[float, ...]:
    """Give by how much each constraint is broken."""
    return score.excesses if isinstance(score, JointScore) else ()


def is_valid(score: Score | None) -> TypeGuard[Score]:
    """Say whether a score is one: with an infinity it is, with NaN anywhere it isn't."""
    if score is None or not isinstance(score, JointScore):
        return score is not None and not math.isnan(score)
    return not any(map(math.isnan, score.values)) and not any(map(math.isnan, score.excesses))


@dataclass(frozen=True, slots=True)
class Objective:
    """What a sweep searches for.

    It ranks sets of trials, never pairs: with several goals the best ones of a set are a front. Trials that break a
    constraint on outcomes rank behind all that keep them, the less they break them the better: Deb et al., "A Fast and
    Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 6(2), 2002, section VI.
    """

    metric: Metric | tuple[Metric, ...] | None
    """What decides: one goal, or several; None: nothing does, so that no report has a score."""
    constraints: tuple[OutcomeConstraint, ...] = ()
    goals: tuple[Metric, ...] = field(init=False)
    _signs: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """By which values are multiplied so that less is better."""

    def __post_init__(self) -> None:
        metric = () if self.metric is None else self.metric
        goals = metric if isinstance(metric, tuple) else (metric,)
        object.__setattr__(self, "goals", goals)
        object.__setattr__(self, "_signs", tuple(goal.signed(1.0) for goal in goals))

    @property
    def several(self) -> bool:
        """Whether there are several goals."""
        return len(self.goals) > 1

    @property
    def joint(self) -> bool:
        """Whether a score is more than a number."""
        return self.several or bool(self.constraints)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that every report must hold: those of the goals, then those that are constrained alone."""
        wanted = [goal.name for goal in self.goals] + [constraint.metric for constraint in self.constraints]
        return tuple(dict.fromkeys(wanted))

    @property
    def title(self) -> str:
        """What decides, in words: `accuracy`; `accuracy and latency`; `no metric`."""
        return " and ".join(goal.name for goal in self.goals) or "no metric"

    @property
    def aim(self) -> str:
        """What is searched for, in words: `maximize accuracy, minimize latency`; `no metric`."""
        return ", ".join(f"{goal.goal} {goal.name}" for goal in self.goals) or "no metric"

    def reported(self, metrics: Mapping[str, float]) -> Score | None:
        """Give what a report is worth, NaN included; None where it lacks what decides."""
        if not self.goals:
            return None
        if not self.joint:
            return metrics.get(self.goals[0].name)
        if any(name not in metrics for name in self.names):
            return None
        excesses = tuple(constraint.excess(metrics[constraint.metric]) for constraint in self.constraints)
        return JointScore(tuple(metrics[goal.name] for goal in self.goals), excesses)

    def reaches(self, score: Score | None) -> bool:
        """Say whether a score is as good as all targets, or better, and keeps the constraints."""
        if not is_valid(score) or _violation(score):
            return False
        reached = zip(self.goals, values_of(score), strict=True)
        answers = [goal.reached(value) for goal, value in reached if goal.target is not None]
        return bool(answers) and all(answers)

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON; `from_json` reads it back."""
        return {"goals": [asdict(goal) for goal in self.goals], "constraints": [str(one) for one in self.constraints]}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Objective:
        """Read back what `to_json` gave."""
        constraints = tuple(map(OutcomeConstraint.parse, given["constraints"]))
        return cls(tuple(Metric(**goal) for goal in given["goals"]), constraints)

    def rank(self, scores: Mapping[int, Score | None]) -> list[int]:
        """Order trials, best first: by `places`, ties to the lower trial.

        Args:
            scores: Trial to score.
        """
        places = self.places(scores)
        return sorted(scores, key=lambda trial: (places[trial], trial))

    def places(self, scores: Mapping[int, Score | None]) -> dict[int, Place]:
        """Give what orders the trials of a set, the less the better.

        First those with a number, then those that break constraints, by how much, then NaN, then None (failed). Of one
        goal numbers are ordered by it, of several by fronts and by how far apart they are in them: see `Fronts`.
        """
        if not self.several:
            return {trial: self.place(score) for trial, score in scores.items()}
        ranked = Fronts.of({trial: self.point(one) for trial, one in scores.items() if self.is_feasible(one)}).places()
        return {
            trial: (_FEASIBLE, *ranked[trial]) if trial in ranked else self.beyond(score)
            for trial, score in scores.items()
        }

    def front(self, scores: Mapping[int, Score | None], known: Collection[int] = ()) -> list[int]:
        """Give the trials that no other one is better than, by number; none where no score is valid.

        Of one goal it is the one that `rank` puts first. Where each trial breaks constraints, it is the one that breaks
        them least.

        Args:
            scores: Trial to score.
            known: Those of which none is better than another, such as a former front: they aren't compared again.
        """
        if self.several:
            points = {trial: self.point(score) for trial, score in scores.items() if self.is_feasible(score)}
            if points:
                return _joined(points, known)
        best = self.best(scores)
        return [] if best is None else [best]

    def extends(self, score: Score, front: Iterable[Score]) -> bool:
        """Say whether a score belongs to the front of others: none of them is better; of one goal, nor as good."""
        if self.several and self.is_feasible(score):
            return not any(self.improves(other, score) for other in front)
        return all(self.improves(score, other) for other in front)

    def best(self, scores: Mapping[int, Score | None]) -> int | None:
        """Give the trial that `rank` puts first; None where no score is valid."""
        valid = {trial: score for trial, score in scores.items() if is_valid(score)}
        places = self.places(valid)
        return min(valid, key=lambda trial: (places[trial], trial), default=None)

    def worst(self, scores: Iterable[Score]) -> Score:
        """Give what is no better than any of these, in no goal and no constraint; there must be one."""
        values, excesses = zip(*((values_of(score), excesses_of(score)) for score in scores), strict=True)
        worst = tuple(
            max(column, key=goal.signed) for goal, column in zip(self.goals, zip(*values, strict=True), strict=True)
        )
        return JointScore(worst, tuple(map(max, zip(*excesses, strict=True)))) if self.joint else worst[0]

    def improves(self, score: Score | None, former: Score | None) -> bool:
        """Say whether a score is better than another: of several goals, where it dominates it."""
        if self.several and self.is_feasible(score) and self.is_feasible(former):
            return dominates(self.point(score), self.point(former))
        if self.several:
            return self.beyond(score) < self.beyond(former)
        return self.place(score) < self.place(former)

    def replaces(self, score: Score | None, former: Score | None) -> bool:
        """Say whether what a trial reports is its score from now on, and the former one no more.

        Of equal ones it is the newer: there may be a checkpoint of it.
        """
        return not self.goals or self.goals[0].scope == "last" or not self.improves(former, score)

    def place(self, score: Score | None) -> Place:
        """Give what orders scores of one goal as `rank` does: the less, the better."""
        if self.is_feasible(score):
            (value,) = self.point(score)
            return _FEASIBLE, value
        return self.beyond(score)

    def point(self, score: Score) -> Point:
        """Give the values of a score so that less is better."""
        return tuple(map(mul, self._signs, values_of(score)))

    def broken(self, score: Score | None) -> list[str]:
        """Give the constraints that a score breaks, in words: `latency_ms <= 20`."""
        excesses = () if score is None else excesses_of(score)
        return [str(one) for one, excess in zip(self.constraints, excesses, strict=False) if excess > 0]

    def is_feasible(self, score: Score | None) -> TypeGuard[Score]:
        """Say whether a score is valid and keeps the constraints."""
        return is_valid(score) and not _violation(score)

    def beyond(self, score: Score | None) -> Place:
        """Give the place of a score behind those that are good; of one that is good, before them."""
        if not is_valid(score):
            return (_NONE if score is None else _NAN), 0.0
        violation = _violation(score)
        return (_BROKEN, violation) if violation else (_FEASIBLE, 0.0)


def _joined(points: Mapping[int, Point], known: Collection[int]) -> list[int]:
    """Give the trials whose points no other one dominates, where none of the known ones dominates another."""
    new = undominated({trial: point for trial, point in points.items() if trial not in known})
    old = [trial for trial in known if trial in points]
    kept = (trial for trial in old if not any(dominates(points[other], points[trial]) for other in new))
    joining = (trial for trial in new if not any(dominates(points[other], points[trial]) for other in old))
    return sorted([*kept, *joining])


def _violation(score: Score) -> float:
    return score.violation if isinstance(score, JointScore) else 0.0
