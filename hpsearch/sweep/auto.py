"""`method: auto`: the search method that fits a sweep, chosen from the sweep's own keys when the study is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpsearch.space import Categorical, Distribution

if TYPE_CHECKING:
    from hpsearch.sweep.sweep import Sweep

AUTO = "auto"

_RUNGS_FROM = 9
"""Fewest iterations from which trials are stopped early: three rungs with eta 3."""

_RUNGS_FOR = 27
"""Fewest trials from which trials are stopped early: of fewer, `asha` may train none to its end."""

_GP_UP_TO = 100
"""Most trials, trained to their end, for which a Gaussian process is taken: a suggestion takes 60 ms and more."""


def choose_method(sweep: Sweep) -> tuple[str, str]:
    """Return the method for a sweep, and why: `("tpe", "there are several metrics")`.

    The number of workers has no influence, so that the table doesn't depend on it. The rules follow what the methods
    found on families of recorded tables, see docs/benchmarks.md.
    """
    space, objective, early = sweep.parameters, sweep.objective, sweep.early_terminate
    max_iter, run_cap, repeats = sweep.max_iter, sweep.run_cap, sweep.repeats
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
    if has_rungs and not repeats.several and sweep.search.lag is None:
        return "bohb", f"trials of {max_iter} iterations can be compared early, at rungs of asha"
    numbers = sum(not isinstance(distribution, Categorical) for distribution in searched or ())
    is_short = run_cap is not None and run_cap <= _GP_UP_TO
    if is_short and not space.conditional and searched is not None and numbers >= len(searched) / 2:
        return "gp", f"there are at most {_GP_UP_TO} trials, trained to their end, and parameters are mostly numbers"
    return "tpe", "it learns from trials trained to their end, whatever the kinds of parameters"


def _varies(distribution: Distribution) -> bool:
    return distribution.searched and not (isinstance(distribution, Categorical) and len(distribution.values) == 1)
