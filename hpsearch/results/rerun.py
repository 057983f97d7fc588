"""Results of a rerun: the mean and spread of each configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpsearch.errors import HpsearchError
from hpsearch.objective import is_valid
from hpsearch.objective.repeats import deviation, mean
from hpsearch.results.study import Study
from hpsearch.trial import Params, Score, TrialRow, TrialState

if TYPE_CHECKING:
    import pandas as pd

    from hpsearch.tables.layout import Screen

OWN = ("trial", "value", "iterations")
"""Columns of a configuration's result in the original study."""
SPREAD = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class Configuration:
    """Params that a rerun ran several times, with different seeds."""

    trial: int
    """Number of the trial in the original study; if several have these params, the best."""
    value: float
    """Value of that trial."""
    iterations: int
    """Iterations of that trial."""
    params: Params
    """Values by flat name."""
    asked: int
    """Number of planned runs."""
    runs: tuple[TrialRow, ...]
    """Begun trials of the rerun."""

    @cached_property
    def values(self) -> list[float]:
        """Values of the runs that completed with a value. Other runs don't count."""
        return [row.value for row in self.ended if row.value is not None]

    @property
    def ended(self) -> list[TrialRow]:
        """Runs that completed with a value."""
        return [row for row in self.runs if row.state is TrialState.COMPLETE and row.value is not None]

    @property
    def succeeded(self) -> int:
        """Number of runs that completed with a value."""
        return len(self.values)

    @cached_property
    def mean(self) -> float | None:
        """Mean of the values; None if there are none, NaN if they contain both infinities."""
        return mean(self.values) if self.values else None

    @cached_property
    def std(self) -> float | None:
        """Sample standard deviation (n - 1) of the values; None for fewer than two, NaN if one isn't finite."""
        return deviation(self.values)

    @property
    def min(self) -> float | None:
        """The smallest value."""
        return min(self.values, default=None)

    @property
    def max(self) -> float | None:
        """The largest value."""
        return max(self.values, default=None)


@dataclass(frozen=True)
class Rerun:
    """A study that runs the best configurations of another study again.

    Args:
        study: The rerun.
        origin: The rerun's record of the original study.
    """

    study: Study
    origin: Mapping[str, Any]

    @property
    def directory(self) -> str:
        """Path of the original study."""
        return str(self.origin["directory"])

    @property
    def metric(self) -> str:
        """Name of the objective's metric."""
        return self.study.sweep.objective.goals[0].name

    @cached_property
    def former(self) -> tuple[Configuration, ...]:
        """The configurations in the original study's order, best first."""
        origins, points = self.origin["configurations"], self.study.sweep.points_to_try
        runs: dict[str, list[TrialRow]] = {}
        for row in self.study.trials:
            if row.origin == "points_to_try":  # skips configurations that the user added
                runs.setdefault(identity(row.params), []).append(row)
        return tuple(
            Configuration(
                **{name: origin[name] for name in OWN},
                params=points[index],
                asked=self.origin["seeds"],
                runs=tuple(runs.get(identity(points[index]), ())),
            )
            for index, origin in enumerate(origins)
        )

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """Configurations by mean, best first; configurations without a value come last.

        Configurations whose means satisfy the outcome constraints come before the others.
        """
        scores = {index: self._score(configuration) for index, configuration in enumerate(self.former)}
        return tuple(self.former[index] for index in self.study.sweep.objective.rank(scores))

    def _score(self, configuration: Configuration) -> Score | None:
        """Return the score of a configuration's mean metrics."""
        objective = self.study.sweep.objective
        if configuration.mean is None:
            return None
        reported = [self.study.metrics_of(row) for row in configuration.ended] if objective.constraints else []
        means = {name: mean([metrics[name] for metrics in reported]) for name in objective.names[1:]}
        return objective.reported({**means, self.metric: configuration.mean})

    @property
    def best(self) -> Configuration:
        """The configuration with the best mean.

        Raises:
            HpsearchError: No configuration has a mean.
        """
        first = self.configurations[0]
        if not is_valid(first.mean):
            raise HpsearchError(
                f"{self.study.directory}: no configuration has a mean of {self.metric!r} yet. "
                f"`hpsearch trials {shlex.quote(str(self.study.directory))}` shows what became of each run."
            )
        return first

    @property
    def varying(self) -> tuple[str, ...]:
        """Names of the params that the sweep varies: all except constants."""
        space = self.study.sweep.parameters
        parameters = ((name, space.find(name)) for name in self.study.names)
        return tuple(
            name for name, parameter in parameters if parameter is not None and parameter.distribution.searched
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of `dataframe` as dicts. Each has all params as a nested dict."""
        nest = self.study.sweep.parameters.nest
        return [
            {
                **{name: getattr(config, name) for name in OWN},
                "params": nest(config.params),
                **result_of(config),
            }
            for config in self.configurations
        ]

    def dataframe(self) -> pd.DataFrame:
        """Return every configuration as a row, by mean, best first.

        The columns are `trial, value, iterations, params.<name>, mean, std, min, max, succeeded, runs`; the first three
        are those of the original study's trial. Missing numbers are NaN; missing params are NaN or NA, depending on the
        column's type.
        """
        from hpsearch.tables.rerun import rerun_dataframe

        return rerun_dataframe(self)

    def text(self, screen: Screen | None = None) -> str:
        """Return the table as text, with notes on what the table leaves out and on the best configuration.

        Args:
            screen: Terminal for the output; None: a file.
        """
        from hpsearch.tables.rerun import rerun_text

        return rerun_text(self, screen)

    def broken(self, configuration: Configuration) -> list[str]:
        """Return the outcome constraints that a configuration's means violate."""
        return list(self.study.sweep.objective.broken(self._score(configuration)))


def identity(params: Params) -> str:
    """Return a key for params that distinguishes 1, 1.0 and True, which are equal in Python."""
    return json.dumps(dict(params), sort_keys=True)


def result_of(config: Configuration) -> dict[str, Any]:
    """Return a configuration's mean and spread, and the numbers of succeeded and planned runs."""
    return {**{name: getattr(config, name) for name in (*SPREAD, "succeeded")}, "runs": config.asked}
