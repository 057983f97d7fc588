"""The objective of a sweep: its metrics and outcome constraints, the score of a report, and the ranking of trials."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import mul
from typing import Annotated, Any, Literal, TypeGuard

from hpsearch.config.checks import InvalidKey, number, shown, text
from hpsearch.config.settings import HOW, Settings
from hpsearch.objective.fronts import Fronts, Point, dominates, non_dominated
from hpsearch.trial import Goal, JointScore, Score

_CONSTRAINT = re.compile(r"(?P<metric>\S.*?)\s*(?P<sign><=|>=|==|<|>|=)\s*(?P<bound>\S+)")
_EXPECTED_CONSTRAINT = "must be a reported metric, <= or >=, and a number, such as latency_ms <= 20"


@dataclass(frozen=True)
class Metric(Settings):
    """A metric to optimize, alone or with others."""

    name: str
    """A key of the reported mapping."""
    goal: Goal = "minimize"
    """Which values are better: `minimize` or `maximize`."""
    scope: Literal["last", "best"] = "last"
    """Which report gives a trial's value: the `last`, or the `best` so far. With several metrics always the last."""
    target: Annotated[float | None, HOW] = None
    """The sweep ends (exit code 0) when a report is this good or better; with several metrics, all in one report; none:
    no target."""
    reference: Annotated[float | None, HOW] = None
    """With several metrics: the worst acceptable value, from which the hypervolume is measured."""

    def reached(self, value: float) -> bool:
        """Return whether a value is as good as the target or better; False for NaN, or without a target."""
        if self.target is None or math.isnan(value):
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target

    def signed(self, value: float) -> float:
        """Return the value to minimize: negated if the goal is to maximize."""
        return value if self.goal == "minimize" else -value


def without_targets(goals: Iterable[Metric]) -> tuple[Metric, ...]:
    """Return the same goals without targets."""
    return tuple(replace(goal, target=None) for goal in goals)


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """A bound on a reported metric. It is checked after training, unlike constraints of the space."""

    metric: str
    """A key of the mapping that the trainable reports."""
    bound: float
    """Finite."""
    most: bool
    """The bound is an upper bound; False: a lower bound."""

    @classmethod
    def parse(cls, value: object) -> OutcomeConstraint:
        """Parse a constraint such as `latency_ms <= 20`.

        Raises:
            InvalidKey: The value is not a constraint.
        """
        constraint = text(value, ()).strip()
        problem = f"{_EXPECTED_CONSTRAINT}, got {shown(constraint)}"
        match = _CONSTRAINT.fullmatch(constraint)
        if match is None:
            raise InvalidKey((), problem)
        if match["sign"] not in ("<=", ">="):
            raise InvalidKey((), problem, f"write <= or >= for {match['sign']}")
        metric = match["metric"]
        if "<" in metric or ">" in metric:
            raise InvalidKey((), problem, "write two constraints for two bounds")
        if _is_number(metric):
            raise InvalidKey((), problem, "write the metric first")
        try:
            bound = number(float(match["bound"]), ())
        except (ValueError, InvalidKey):
            raise InvalidKey((), problem, "the bound must be a finite number") from None
        return cls(metric, bound, match["sign"] == "<=")

    def excludes(self, other: OutcomeConstraint) -> bool:
        """Return whether no value keeps both constraints."""
        if self.metric != other.metric or self.most == other.most:
            return False
        most, least = (self, other) if self.most else (other, self)
        return most.bound < least.bound

    def excess(self, value: float) -> float:
        """Return by how much a value exceeds the bound, as a share of the bound; 0 or less if the constraint is kept.

        A relative excess gives metrics in bytes and in seconds the same weight. If the bound is 0, the excess is
        absolute. NaN for NaN.
        """
        over = value - self.bound if self.most else self.bound - value
        return over / abs(self.bound) if self.bound else over

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.most else '>='} {repr(self.bound).removesuffix('.0')}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


SortKey = tuple[float, ...]
"""Sorts scores, best first."""

_FEASIBLE, _INFEASIBLE, _NAN, _FAILED = range(4)
"""The first element of a sort key."""


def values_of(score: Score) -> tuple[float, ...]:
    """Return the value of each goal."""
    return score.values if isinstance(score, JointScore) else (score,)


def excesses_of(score: Score) -> tuple[float, ...]:
    """Return by how much each outcome constraint is broken; 0 or less if it is kept."""
    return score.excesses if isinstance(score, JointScore) else ()


def is_valid(score: Score | None) -> TypeGuard[Score]:
    """Return whether a score is not None and contains no NaN. Infinities are valid."""
    if score is None or not isinstance(score, JointScore):
        return score is not None and not math.isnan(score)
    return not any(map(math.isnan, score.values)) and not any(map(math.isnan, score.excesses))


@dataclass(frozen=True, slots=True)
class Objective:
    """The goals and outcome constraints of a sweep, and the ranking of trials by them.

    With several goals, the best trials of a set are its Pareto front. Trials that break an outcome constraint rank
    after all trials that keep them, ordered by their violation: Deb et al., "A Fast and Elitist Multiobjective Genetic
    Algorithm: NSGA-II", IEEE TEC 6(2), 2002, section VI.
    """

    metric: Metric | tuple[Metric, ...] | None
    """One goal, or several; None: reports have no score."""
    constraints: tuple[OutcomeConstraint, ...] = ()
    goals: tuple[Metric, ...] = field(init=False)
    _signs: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Factors that turn values into values to minimize."""

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
        """Whether scores are `JointScore`s: with several goals, or constraints."""
        return self.several or bool(self.constraints)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that every report must contain: goals first, then constrained metrics."""
        required = [goal.name for goal in self.goals] + [constraint.metric for constraint in self.constraints]
        return tuple(dict.fromkeys(required))

    @property
    def title(self) -> str:
        """The metrics in words: `accuracy`; `accuracy and latency`; `no metric`."""
        return " and ".join(goal.name for goal in self.goals) or "no metric"

    @property
    def aim(self) -> str:
        """The goals in words: `maximize accuracy, minimize latency`; `no metric`."""
        return ", ".join(f"{goal.goal} {goal.name}" for goal in self.goals) or "no metric"

    def reported(self, metrics: Mapping[str, float]) -> Score | None:
        """Return the score of a report, which may contain NaN; None if a required metric is missing."""
        if not self.goals:
            return None
        if not self.joint:
            return metrics.get(self.goals[0].name)
        if any(name not in metrics for name in self.names):
            return None
        excesses = tuple(constraint.excess(metrics[constraint.metric]) for constraint in self.constraints)
        return JointScore(tuple(metrics[goal.name] for goal in self.goals), excesses)

    def reaches(self, score: Score | None) -> bool:
        """Return whether a score reaches all targets and keeps the constraints."""
        if not is_valid(score) or _violation(score):
            return False
        values = zip(self.goals, values_of(score), strict=True)
        reached = [goal.reached(value) for goal, value in values if goal.target is not None]
        return bool(reached) and all(reached)

    def to_json(self) -> dict[str, Any]:
        """Return the objective as JSON; `from_json` reads it."""
        return {"goals": [asdict(goal) for goal in self.goals], "constraints": [*map(str, self.constraints)]}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Objective:
        """Return the objective that `to_json` wrote."""
        constraints = tuple(map(OutcomeConstraint.parse, config["constraints"]))
        return cls(tuple(Metric(**goal) for goal in config["goals"]), constraints)

    def rank(self, scores: Mapping[int, Score | None]) -> list[int]:
        """Return the trials, best first: by `sort_keys`, then by number.

        Args:
            scores: Trial to score.
        """
        keys = self.sort_keys(scores)
        return sorted(scores, key=lambda trial: (keys[trial], trial))

    def sort_keys(self, scores: Mapping[int, Score | None]) -> dict[int, SortKey]:
        """Return the sort key of each trial of a set.

        Feasible scores sort first, then infeasible ones by their violation, then NaN, then None (failed). Feasible
        scores sort by the value of a single goal, or by non-dominated sorting of several goals: see `Fronts`.
        """
        if not self.several:
            return {trial: self.sort_key(score) for trial, score in scores.items()}
        points = {trial: self.point(score) for trial, score in scores.items() if self.is_feasible(score)}
        ranked = Fronts.of(points).sort_keys()
        return {
            trial: (_FEASIBLE, *ranked[trial]) if trial in ranked else self.infeasible_key(score)
            for trial, score in scores.items()
        }

    def front(self, scores: Mapping[int, Score | None], former: Collection[int] = ()) -> list[int]:
        """Return the sorted trials of the Pareto front; empty if no score is valid.

        With one goal, or without a feasible trial, this is a list of the best trial.

        Args:
            scores: Trial to score.
            former: Trials that do not dominate each other, such as an earlier front. They are not compared again.
        """
        if self.several:
            points = {trial: self.point(score) for trial, score in scores.items() if self.is_feasible(score)}
            if points:
                return _merged_front(points, former)
        best = self.best(scores)
        return [] if best is None else [best]

    def extends(self, score: Score, front: Iterable[Score]) -> bool:
        """Return whether a score would join the Pareto front of others; with one goal, whether it is the new best."""
        if self.several and self.is_feasible(score):
            return not any(self.improves(other, score) for other in front)
        return all(self.improves(score, other) for other in front)

    def best(self, scores: Mapping[int, Score | None]) -> int | None:
        """Return the trial that `rank` puts first; None if no score is valid."""
        valid = {trial: score for trial, score in scores.items() if is_valid(score)}
        keys = self.sort_keys(valid)
        return min(valid, key=lambda trial: (keys[trial], trial), default=None)

    def worst(self, scores: Iterable[Score]) -> Score:
        """Return the score with the worst value of each goal and each constraint; `scores` must not be empty."""
        values, excesses = zip(*((values_of(score), excesses_of(score)) for score in scores), strict=True)
        worst = tuple(
            max(column, key=goal.signed) for goal, column in zip(self.goals, zip(*values, strict=True), strict=True)
        )
        return JointScore(worst, tuple(map(max, zip(*excesses, strict=True)))) if self.joint else worst[0]

    def improves(self, score: Score | None, former: Score | None) -> bool:
        """Return whether a score is better than a former one; with several goals, whether it dominates that one."""
        if self.several and self.is_feasible(score) and self.is_feasible(former):
            return dominates(self.point(score), self.point(former))
        if self.several:
            return self.infeasible_key(score) < self.infeasible_key(former)
        return self.sort_key(score) < self.sort_key(former)

    def replaces(self, score: Score | None, former: Score | None) -> bool:
        """Return whether a newly reported score replaces the former score of its trial.

        Of equal scores, the newer is kept, since there may be a checkpoint of it.
        """
        return not self.goals or self.goals[0].scope == "last" or not self.improves(former, score)

    def sort_key(self, score: Score | None) -> SortKey:
        """Return the sort key of a score of one goal."""
        if self.is_feasible(score):
            (value,) = self.point(score)
            return _FEASIBLE, value
        return self.infeasible_key(score)

    def point(self, score: Score) -> Point:
        """Return the values of a score, to be minimized."""
        return tuple(map(mul, self._signs, values_of(score)))

    def broken(self, score: Score | None) -> list[str]:
        """Return the constraints that a score breaks, in words: `latency_ms <= 20`."""
        excesses = () if score is None else excesses_of(score)
        return [str(constraint) for constraint, excess in zip(self.constraints, excesses, strict=False) if excess > 0]

    def is_feasible(self, score: Score | None) -> TypeGuard[Score]:
        """Return whether a score is valid and keeps the constraints."""
        return is_valid(score) and not _violation(score)

    def infeasible_key(self, score: Score | None) -> SortKey:
        """Return the sort key of an infeasible score. Feasible scores all get the same key, which sorts first."""
        if not is_valid(score):
            return (_FAILED if score is None else _NAN), 0.0
        violation = _violation(score)
        return (_INFEASIBLE, violation) if violation else (_FEASIBLE, 0.0)


def _merged_front(points: Mapping[int, Point], former: Collection[int]) -> list[int]:
    """Return the sorted non-dominated trials; those in `former` must not dominate each other."""
    new = non_dominated({trial: point for trial, point in points.items() if trial not in former})
    old = [trial for trial in former if trial in points]
    remaining = (trial for trial in old if not any(dominates(points[other], points[trial]) for other in new))
    joining = (trial for trial in new if not any(dominates(points[other], points[trial]) for other in old))
    return sorted([*remaining, *joining])


def _violation(score: Score) -> float:
    return score.violation if isinstance(score, JointScore) else 0.0
