"""The ways in which several ranks train one model: `parallel.strategy` of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.nearest import nearest
from hpsearch_trainers.strategies.allreduce import Allreduce
from hpsearch_trainers.strategies.average_once import AverageOnce
from hpsearch_trainers.strategies.downpour import Downpour
from hpsearch_trainers.strategies.hogwild import Hogwild, Locked
from hpsearch_trainers.strategies.local_sgd import LocalSGD
from hpsearch_trainers.strategies.parameter_server import ParameterServer
from hpsearch_trainers.strategies.pipeline import Pipeline
from hpsearch_trainers.strategies.strategy import Alone, Options, Strategy, StrategyCapabilities
from hpsearch_trainers.strategies.tensor import TensorParallel

__all__ = ["STRATEGIES", "Options", "Strategy", "StrategyCapabilities", "strategy_of"]

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        Allreduce,
        AverageOnce,
        Downpour,
        Hogwild,
        LocalSGD,
        Locked,
        ParameterServer,
        Pipeline,
        TensorParallel,
    )
}
"""The strategies by their name in `parallel.strategy`."""


def strategy_of(parallel: Mapping[str, Any], group: Group | None) -> Strategy:
    """Create the strategy of a rank; a collective, because a strategy may form groups.

    Args:
        parallel: The sweep's `parallel` keys, updated with the trial's parameters.
        group: All ranks of the trial; None for a single rank, for which `allreduce` is `Alone`.

    Raises:
        ConfigurationError: The strategy is unknown, or can't be used with these options or this number of ranks.
    """
    options = Options.from_dict(parallel)
    if options.strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES)
        hint = nearest(options.strategy, STRATEGIES)
        raise ConfigurationError(f"parallel.strategy must be one of {names}, got {options.strategy!r}{hint}")
    strategy_class = STRATEGIES[options.strategy]
    if group is not None:
        return strategy_class(options, group)
    if strategy_class is not Allreduce:
        raise ConfigurationError(
            f"parallel.strategy {options.strategy} takes 2 workers or more, got 1: raise resources.workers_per_trial"
        )
    return Alone(options, None)
