"""What came of running configurations again: mean and spread of each, as rows, as a DataFrame and for a terminal."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpsearch.errors import HpsearchError
from hpsearch.objective import is_valid
from hpsearch.report.layout import WHOLE, Column, Screen, table_text
from hpsearch.report.tables import LONGEST_CELL, frame_of, param_cell
from hpsearch.report.wording import counted, numbers, shortened
from hpsearch.trial import Params, Score, TrialRow, TrialState

if TYPE_CHECKING:
    import pandas as pd

    from hpsearch.report.study import Study

__all__ = ["Configuration", "Rerun", "identity"]

_MOST_NAMED = 10

_OWN = ("trial", "value", "iterations")
_SPREAD = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class Configuration:
    """Params that were run several times, with other seeds."""

    trial: int
    """The one of the former study that they are of; of several with these params the best."""
    value: float
    """Its value there."""
    iterations: int
    """Its iterations there."""
    params: Params
    """Flat names to values."""
    asked: int
    """How many runs there are to be."""
    runs: tuple[TrialRow, ...]
    """The trials of the new study that were begun."""

    @cached_property
    def values(self) -> list[float]:
        """What the runs gave that came to their end with a value: the others count nowhere."""
        return [row.value for row in self.ended if row.value is not None]

    @property
    def ended(self) -> list[TrialRow]:
        """The runs that came to their end with a value."""
        return [row for row in self.runs if row.state is TrialState.COMPLETE and row.value is not None]

    @property
    def succeeded(self) -> int:
        """How many those are."""
        return len(self.values)

    @cached_property
    def mean(self) -> float | None:
        """The values' mean; None where there are none, NaN where they hold both infinities."""
        return statistics.mean(self.values) if self.values else None

    @cached_property
    def std(self) -> float | None:
        """Their sample standard deviation (n - 1); None of fewer than two, NaN where one isn't finite."""
        if self.succeeded < 2:
            return None
        try:
            return statistics.stdev(self.values) if all(map(math.isfinite, self.values)) else math.nan
        except OverflowError:
            return math.inf

    @property
    def min(self) -> float | None:
        """The least value."""
        return min(self.values, default=None)

    @property
    def max(self) -> float | None:
        """The greatest value."""
        return max(self.values, default=None)


@dataclass(frozen=True)
class Rerun:
    """A study that runs the best configurations of a former one again.

    Args:
        study: The new one.
        origin: What it recorded of where it comes from.
    """

    study: Study
    origin: Mapping[str, Any]

    @property
    def directory(self) -> str:
        """Where the former study lay."""
        return str(self.origin["directory"])

    @property
    def _metric(self) -> str:
        return self.study.sweep.objective.goals[0].name

    @cached_property
    def former(self) -> tuple[Configuration, ...]:
        """The configurations as the former study ranked them: the first has its best trial."""
        told, points = self.origin["configurations"], self.study.sweep.points_to_try
        runs: dict[str, list[TrialRow]] = {}
        for row in self.study.trials:
            if row.origin == "points_to_try":  # not a point that was added, which comes before those that are left
                runs.setdefault(identity(row.params), []).append(row)
        return tuple(
            Configuration(
                **{name: known[name] for name in _OWN},
                params=points[place],
                asked=self.origin["seeds"],
                runs=tuple(runs.get(identity(points[place]), ())),
            )
            for place, known in enumerate(told)
        )

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations by their mean, best first; those without any value last.

        Behind those whose means keep the constraints on outcomes stand the others.
        """
        scores = {place: self._score(known) for place, known in enumerate(self.former)}
        return tuple(self.former[place] for place in self.study.sweep.objective.rank(scores))

    def _score(self, known: Configuration) -> Score | None:
        """Give what the means of a configuration are worth."""
        objective = self.study.sweep.objective
        if known.mean is None:
            return None
        told = [self.study.metrics_of(row) for row in known.ended] if objective.constraints else []
        means = {name: statistics.mean(metrics[name] for metrics in told) for name in objective.names[1:]}
        return objective.reported({**means, self._metric: known.mean})

    @property
    def best(self) -> Configuration:
        """The configuration with the best mean.

        Raises:
            HpsearchError: None has one.
        """
        first = self.configurations[0]
        if not is_valid(first.mean):
            raise HpsearchError(
                f"{self.study.directory}: no configuration has a mean of {self._metric!r} yet. "
                f"`hpsearch trials {shlex.quote(str(self.study.directory))}` shows what became of each run."
            )
        return first

    @property
    def varying(self) -> tuple[str, ...]:
        """The params that the sweep varies: all but its constants."""
        space = self.study.sweep.parameters
        known = ((name, space.find(name)) for name in self.study.names)
        return tuple(name for name, parameter in known if parameter is not None and parameter.distribution.searched)

    def records(self) -> list[dict[str, Any]]:
        """Give the rows of `dataframe` as objects, with all params, groups nested, as an object in each."""
        nest = self.study.sweep.parameters.nest
        return [
            {**{name: getattr(one, name) for name in _OWN}, "params": nest(one.params), **_came_of(one)}
            for one in self.configurations
        ]

    def dataframe(self) -> pd.DataFrame:
        """Give every configuration as a row, by its mean, best first.

        The columns are `trial, value, iterations, params.<name>, mean, std, min, max, succeeded, runs`; the first three
        are those of the former study's trial. NaN stands where there is no such number, and NaN or NA, as the column's
        type has it, where a configuration doesn't have the param.
        """
        import pandas as pd

        known = self.configurations
        columns = {
            **{name: [getattr(one, name) for one in known] for name in _OWN},
            **{f"params.{name}": [one.params.get(name, pd.NA) for one in known] for name in self.varying},
        }
        came = [_came_of(one) for one in known]
        frame = frame_of(columns | {name: [one[name] for one in came] for name in came[0]})
        return frame.astype({name: "float64" for name in ("value", "mean", "std", "min", "max")})

    def text(self, screen: Screen = WHOLE) -> str:
        """Give the table for a terminal, what isn't in it, and which configuration is best."""
        known, metric = self.configurations, self._metric
        columns = [
            Column("trial", [str(one.trial) for one in known], is_kept=True),
            Column(f"its {metric}", numbers([one.value for one in known])),
            Column("iterations", [str(one.iterations) for one in known]),
            *(Column(name, [_cell(one, name) for one in known], is_text=True) for name in self.varying),
            *(Column(name, numbers([getattr(one, name) for one in known]), is_kept=True) for name in _SPREAD),
            Column("runs", [f"{one.succeeded} of {one.asked}" for one in known], is_kept=True),
        ]
        table = table_text(columns, screen, "with hpsearch best --format json")
        return table + "".join(f"{line}\n" for line in [*self._missing(), *self._verdict()])

    def _missing(self) -> list[str]:
        """Name the runs that no mean holds."""
        unended, lines = 0, []
        for one in self.former:
            unended += one.asked - len(one.runs)
            for row in one.runs:
                which = f"run {row.number} (of trial {one.trial})"
                if row.failure is not None:
                    lines.append(f"failed:       {which}: {shortened(row.failure.message, LONGEST_CELL)}")
                elif row.state is not TrialState.COMPLETE:
                    unended += 1
                elif not is_valid(row.value):
                    lines.append(f"no value:     {which}: {self._metric} is NaN")
        if len(lines) > _MOST_NAMED:
            more = counted(len(lines) - _MOST_NAMED, "more run")
            lines[_MOST_NAMED:] = [
                f"              and {more}: hpsearch trials {shlex.quote(str(self.study.directory))}"
            ]
        if unended:
            total = sum(one.asked for one in self.former)
            lines.append(f"not ended:    {unended} of {counted(total, 'run')}")
        return lines

    def _verdict(self) -> Sequence[str]:
        best, first = self.configurations[0], self.former[0]
        if not is_valid(best.mean):
            return ["best by mean: none, no run has a value"]
        broken = " and ".join(self.study.sweep.objective.broken(self._score(best)))
        line = f"best by mean: trial {best.trial} of {self.directory}, {self._told(best)}"
        line += f", but the means break {broken}, as all do" if broken else ""
        if best is first:
            return [line, "              which was the best trial there, too"]
        place = self.configurations.index(first) + 1
        return [
            line,
            f"              not trial {first.trial}, the best there: place {place} by mean, {self._told(first)}",
        ]

    def _told(self, one: Configuration) -> str:
        if one.mean is None:
            return f"none of {counted(one.asked, 'run')} has a value"
        spread = "" if one.std is None else f" ± {_shown(one.std)}"
        return f"{self._metric} {_shown(one.mean)}{spread} over {one.succeeded} of {one.asked} runs"


def identity(params: Params) -> str:
    """Tell 1 from 1.0 and True, which Python's == doesn't."""
    return json.dumps(dict(params), sort_keys=True)


def _came_of(one: Configuration) -> dict[str, Any]:
    return {**{name: getattr(one, name) for name in (*_SPREAD, "succeeded")}, "runs": one.asked}


def _cell(one: Configuration, name: str) -> str:
    return param_cell(one.params[name]) if name in one.params else ""


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
