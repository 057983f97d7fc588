"""What decides in a sweep, and who can search and schedule by it."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.config.checks import InvalidKey, KeyPath, Mistakes, shown
from hpsearch.objective import Metric, Objective, OutcomeConstraint
from hpsearch.schedulers import KNOWN as SCHEDULERS
from hpsearch.schedulers import settings_named
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.searchers import KNOWN as SEARCHERS
from hpsearch.searchers import Searcher

__all__ = ["check_forks", "check_who_ranks", "checked_metric", "checked_outcome_constraints"]

_INSTEAD = {"metric": "one metric", "outcome_constraints": "left out"}
"""Keys that somebody may not take, to what must be there."""


def checked_metric(given: object) -> Metric | tuple[Metric, ...] | None:
    """Take one metric, or several, or none; a list of one is that one.

    Raises:
        InvalidKey: It is something else, or they can't decide together.
    """
    if given is None:
        return None
    goals = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not goals:
        raise InvalidKey(("metric",), "must hold at least one metric, got none")
    for place, goal in enumerate(goals):
        key: KeyPath = ("metric", place) if isinstance(given, list | tuple) else ("metric",)
        if not isinstance(goal, Metric):
            raise InvalidKey(key, f"must be a Metric, got {shown(goal)}", "write hpsearch.Metric('loss', 'minimize')")
        if any(goal.name == other.name for other in goals[:place]):
            raise InvalidKey((*key, "name"), f"must be another one than those before it, got {goal.name} again")
        if len(goals) > 1 and goal.scope != "last":
            problem = "must be last where several metrics decide: the best reports of a trial would be several"
            raise InvalidKey((*key, "scope"), problem, "remove it")
        if len(goals) == 1 and goal.reference is not None:
            raise InvalidKey((*key, "reference"), "has a meaning only where several metrics decide", "remove it")
    return goals if len(goals) > 1 else goals[0]


def checked_outcome_constraints(given: Sequence[object]) -> tuple[str, ...]:
    """Take constraints on reported metrics, each once and in one form of writing.

    Raises:
        InvalidKey: One isn't a constraint, or two leave no value.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidKey(("outcome_constraints",), f"must be a list of constraints, got {shown(given)}")
    found: list[OutcomeConstraint] = []
    mistakes = Mistakes()
    for place, one in enumerate(given):
        with mistakes.kept():
            found.append(_beside(found, one, ("outcome_constraints", place)))
    mistakes.refuse()
    return tuple(map(str, dict.fromkeys(found)))


def _beside(others: Sequence[OutcomeConstraint], given: object, key: KeyPath) -> OutcomeConstraint:
    """Take a constraint that may stand beside others."""
    try:
        constraint = OutcomeConstraint.parse(given)
    except InvalidKey as error:
        raise error.under(key) from None
    if any(constraint.excludes(other) for other in others):
        problem = f"must leave a value of {constraint.metric} that keeps all constraints, got {constraint}"
        raise InvalidKey(key, problem, "mend it, or the one before it")
    return constraint


def _check_nobody_ranks(
    objective: Objective, method: str, searcher: type[Searcher] | None, early: EarlyTerminate | None
) -> None:
    """Check that nothing asks which trials are better, where no metric says so."""
    learns = searcher is not None and searcher.capabilities.learns
    for wants, why in (
        (learns, f"method is {method}, which goes by it"),
        (early is not None, "trials are terminated early, by it"),
        (bool(objective.constraints), "outcome_constraints stand: trials that keep them are ranked by it"),
    ):
        if wants:
            raise InvalidKey(("metric",), f"is required where {why}", add=((), "metric: {name: loss, goal: minimize}"))


def check_who_ranks(
    objective: Objective, method: str, searcher: type[Searcher] | None, early: EarlyTerminate | None
) -> None:
    """Check that whoever compares trials has a number to do so by, and can do so by more than one.

    Raises:
        InvalidKey: One can't.
    """
    if not objective.goals:
        _check_nobody_ranks(objective, method, searcher, early)
    key = None if searcher is None else searcher.capabilities.unsupported_key(objective)
    if key is not None:
        learning = {name: known.capabilities for name, known in SEARCHERS.items() if known.capabilities.learns}
        able = [name for name, capabilities in learning.items() if not capabilities.unsupported_key(objective)]
        raise InvalidKey(
            (key,),
            f"must be {_INSTEAD[key]} where method is {method}, which learns from one number",
            f"take one of {', '.join(able)}, or a method that doesn't learn, such as random",
        )
    key = None if early is None else early.capabilities.unsupported_key(objective)
    if early is not None and key is not None:
        able = [kind for kind, known in SCHEDULERS.items() if not known.capabilities.unsupported_key(objective)]
        raise InvalidKey(
            (key,),
            f"must be {_INSTEAD[key]} where early_terminate is of type {early.kind}, which compares single numbers",
            f"take one of {', '.join(able)}",
        )


def check_forks(
    objective: Objective, method: str, searcher: type[Searcher] | None, early: EarlyTerminate | None
) -> None:
    """Check that there are parameters for forks, and forks for a searcher that is made for them.

    Raises:
        InvalidKey: There aren't.
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
