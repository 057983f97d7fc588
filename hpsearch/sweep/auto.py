"""`method: auto`: the search method that fits a sweep, chosen from the sweep's own keys when the study is created."""

from __future__ import annotations

from hpsearch.objective import Objective
from hpsearch.objective.repeats import Repeats
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.space import Categorical, Distribution, Space

AUTO = "auto"

_RUNGS_FROM = 9
"""Fewest iterations from which trials are stopped early: three rungs with eta 3."""

_RUNGS_FOR = 27
"""Fewest trials from which trials are stopped early: of fewer, `asha` may train none to its end."""

_GP_UP_TO = 100
"""Most trials, trained to their end, for which a Gaussian process is taken: a suggestion takes 60 ms and more."""


def choose_method(
    space: Space,
    objective: Objective,
    early: EarlyTerminate | None,
    max_iter: int | None,
    run_cap: int | None,
    repeats: Repeats,
    lag: int | None,
) -> tuple[str, str]:
    """Return the method for a sweep, and why: `("tpe", "there are several metrics")`.

    The number of workers has no influence, so that the table doesn't depend on it. The rules follow what the methods
    found on families of recorded tables, see docs/benchmarks.md.

    Args:
        space: The search space.
        objective: The metrics and outcome constraints.
        early: The section `early_terminate`, if there is one.
        max_iter: Iterations of every trial, without `early`.
        run_cap: Maximum number of trials.
        repeats: Trials of each configuration. They are whole trainings, so none is stopped early.
        lag: `search.lag`, which `asha` can't keep.
    """
    if early is not None and early.capabilities.forks:
        return "pbt", f"early_terminate is of type {early.kind}, which forks trials"
    if not objective.goals:
        return "random", "there is no metric to learn from"
    searched = [item.distribution for item in space.parameters if _varies(item.distribution)] if space.bounded else None
    if searched == []:
        return "random", "no parameter has several values"
    if repeats.racing:
        return "random", "a race begins with all its configurations"
    if objective.several or objective.constraints:
        return "tpe", "it learns from several metrics and from outcome constraints"
    if early is not None:
        return "bohb", f"{early.kind} ends trials early"
    has_rungs = max_iter is not None and max_iter >= _RUNGS_FROM and (run_cap is None or run_cap >= _RUNGS_FOR)
    if has_rungs and not repeats.several and lag is None:
        return "bohb", f"trials of {max_iter} iterations can be compared early, at rungs of asha"
    numbers = sum(not isinstance(distribution, Categorical) for distribution in searched or ())
    is_short = run_cap is not None and run_cap <= _GP_UP_TO
    if is_short and not space.conditional and searched is not None and numbers >= len(searched) / 2:
        return "gp", f"there are at most {_GP_UP_TO} trials, trained to their end, and parameters are mostly numbers"
    return "tpe", "it learns from trials trained to their end, whatever the kinds of parameters"


def _varies(distribution: Distribution) -> bool:
    return distribution.searched and not (isinstance(distribution, Categorical) and len(distribution.values) == 1)
