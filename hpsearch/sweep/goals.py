"""Checks of a sweep's metrics, and of methods and schedulers that use them."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.config.checks import InvalidKey, KeyPath, Mistakes, shown, under
from hpsearch.objective import Metric, Objective, OutcomeConstraint
from hpsearch.schedulers import KNOWN as SCHEDULERS
from hpsearch.schedulers import settings_named
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.searchers import KNOWN as SEARCHERS
from hpsearch.searchers import Searcher

_REQUIRED = {"metric": "one metric", "outcome_constraints": "left out"}
"""Keys that a method or scheduler may not support, and what they must be instead."""


def checked_metric(metric: object) -> Metric | tuple[Metric, ...] | None:
    """Return one metric, several, or None. A list of one becomes that metric.

    Raises:
        InvalidKey: A value is not a metric, or metrics cannot be combined.
    """
    if metric is None:
        return None
    goals = tuple(metric) if isinstance(metric, list | tuple) else (metric,)
    if not goals:
        raise InvalidKey(("metric",), "must hold at least one metric, got none")
    for index, goal in enumerate(goals):
        key: KeyPath = ("metric", index) if isinstance(metric, list | tuple) else ("metric",)
        if not isinstance(goal, Metric):
            raise InvalidKey(key, f"must be a Metric, got {shown(goal)}", "write hpsearch.Metric('loss', 'minimize')")
        if any(goal.name == other.name for other in goals[:index]):
            raise InvalidKey((*key, "name"), f"must be another one than those before it, got {goal.name} again")
        if len(goals) > 1 and goal.scope != "last":
            problem = "must be last where several metrics decide: the best reports of a trial would be several"
            raise InvalidKey((*key, "scope"), problem, "remove it")
        if len(goals) == 1 and goal.reference is not None:
            raise InvalidKey((*key, "reference"), "has a meaning only where several metrics decide", "remove it")
    return goals if len(goals) > 1 else goals[0]


def checked_outcome_constraints(constraints: Sequence[object]) -> tuple[str, ...]:
    """Return constraints on reported metrics in a standard notation, without duplicates.

    Raises:
        InvalidKey: A value is not a constraint, or two constraints exclude each other.
    """
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise InvalidKey(("outcome_constraints",), f"must be a list of constraints, got {shown(constraints)}")
    parsed: list[OutcomeConstraint] = []
    mistakes = Mistakes()
    for index, constraint in enumerate(constraints):
        with mistakes.collect(), under(("outcome_constraints", index)):
            read = OutcomeConstraint.parse(constraint)
            if any(read.excludes(other) for other in parsed):
                problem = f"must leave a value of {read.metric} that keeps all constraints, got {read}"
                raise InvalidKey((), problem, "mend it, or the one before it")
            parsed.append(read)
    mistakes.raise_collected()
    return tuple(map(str, dict.fromkeys(parsed)))


def check_ranking(
    objective: Objective, method: str, searcher: type[Searcher] | None, early: EarlyTerminate | None
) -> None:
    """Check that the metric is set if method or scheduler need it, and that they support all metrics and constraints.

    Raises:
        InvalidKey: A metric is missing, or a key is not supported.
    """
    needing = {
        f"method is {method}, which goes by it": searcher is not None and searcher.capabilities.learns,
        "trials are terminated early, by it": early is not None,
        "there are outcome_constraints: trials that keep them are ranked by it": bool(objective.constraints),
    }
    why = next((why for why, needs_metric in needing.items() if needs_metric), None)
    if not objective.goals and why is not None:
        raise InvalidKey(("metric",), f"is required where {why}", add=((), "metric: {name: loss, goal: minimize}"))
    if searcher is not None and (key := searcher.capabilities.unsupported_key(objective)) is not None:
        problem = f"must be {_REQUIRED[key]} where method is {method}, which learns from one number"
        learning = {name: entry.capabilities for name, entry in SEARCHERS.items() if entry.capabilities.learns}
        able = [name for name, capabilities in learning.items() if not capabilities.unsupported_key(objective)]
        advice = f"take one of {', '.join(able)}, or a method that doesn't learn, such as random"
        raise InvalidKey((key,), problem, advice)
    if early is not None and (key := early.capabilities.unsupported_key(objective)) is not None:
        able = [kind for kind, entry in SCHEDULERS.items() if not entry.capabilities.unsupported_key(objective)]
        where = f"where early_terminate is of type {early.kind}, which compares single numbers"
        raise InvalidKey((key,), f"must be {_REQUIRED[key]} {where}", f"take one of {', '.join(able)}")


def check_forks(
    objective: Objective, method: str, searcher: type[Searcher] | None, early: EarlyTerminate | None
) -> None:
    """Check that a scheduler that forks has a searcher that explores, and that `pbt` has a scheduler that forks.

    Raises:
        InvalidKey: They do not match.
    """
    forks = early is not None and early.capabilities.forks
    if forks and searcher is not None and not searcher.capabilities.explores:
        raise InvalidKey(
            ("method",),
            f"must be a searcher that explores, as early_terminate forks trials, got {method}",
            "pbt and random do, or one of your own whose capabilities say explores=True",
        )
    if searcher is not None and not forks and searcher.over and settings_named(searcher.over).capabilities.forks:
        problem = f"must be one that forks trials where method is {method}, got {early and early.kind}"
        raise InvalidKey(("early_terminate", "type"), problem, f"{searcher.over} does; or take method random")
    scopes = {goal.scope for goal in objective.goals} - {"last"}
    if early is not None and early.capabilities.newest and scopes:
        (scope,) = scopes
        problem = f"must be last where early_terminate is of type {early.kind}, got {scope}"
        raise InvalidKey(("metric", "scope"), f"{problem}: it compares the states that it copies", "remove it")
