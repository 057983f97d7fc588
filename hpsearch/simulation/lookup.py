"""Find a table's row for a trial's params: the row with equal params, or the nearest one in the unit cube."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey, nearest, shown
from hpsearch.errors import SweepError, TrainableError
from hpsearch.space import Constant, Space
from hpsearch.space.distribution import Distribution, Numeric
from hpsearch.trial import Params, Value

_DUST = 1e-12
"""Distances that differ by less than this are equal, since positions are rounded."""

Columns = Mapping[str, Sequence[Value]]
"""Flat parameter names to a value for each row."""


def check_columns(columns: Columns, space: Space) -> None:
    """Check that table and space have the same parameters.

    Raises:
        SweepError: The table or the space lacks a parameter.
    """
    if space.conditional:
        strange = next(name for name in space.some_names() if name not in space.columns([]))
        raise SweepError(
            f"the sweep of a table must have parameters that every trial has, but {strange} isn't part of each: "
            "write a class derived from hpsearch.Curves, which is given the params as a trainable is"
        )
    for name in _looked_up(space):
        if name not in columns:
            raise SweepError(
                f"the table must have a column for each parameter of the sweep, but has none for {name}: "
                f"{nearest(name, columns)}"
            )
    missing = next((name for name in columns if name not in space.names), None)
    if missing is not None:
        in_column = sorted({shown(value) for value in columns[missing]})
        raise SweepError(
            f"the sweep must have each parameter of the table, but lacks {missing}: add it to parameters, as a range "
            f"or a constant (the table has {', '.join(in_column[:4])}{', ...' if len(in_column) > 4 else ''})"
        )


def _looked_up(space: Space) -> list[str]:
    """Return the parameters that identify a row: all except derived and constant ones."""
    return [
        parameter.name
        for parameter in space.parameters
        if parameter.distribution.searched or (isinstance(parameter.distribution, Constant) and not parameter.holder)
    ]


class ExactRows:
    """Finds rows with equal params; 1 and 1.0 are equal."""

    def __init__(self, columns: Columns, space: Space) -> None:
        self._names = _looked_up(space)
        self._rows: dict[tuple[object, ...], int] = {}
        for row, values in enumerate(zip(*(columns[name] for name in self._names), strict=True)):
            self._rows.setdefault(tuple(map(identity, values)), row)

    def find(self, params: Params) -> int:
        """Return the row.

        Raises:
            TrainableError: The table has no such row.
        """
        row = self._rows.get(tuple(identity(params[name]) for name in self._names))
        if row is None:
            values = ", ".join(f"{name}={shown(params[name])}" for name in self._names)
            raise TrainableError(
                f"the table has no row with {values}: let parameters hold the table's values only, or take the nearest "
                "row (rows: nearest)"
            )
        return row


class NearestRows:
    """Finds the nearest row, by positions in the unit cube of the space.

    A number's position is its fraction of the range, on a logarithmic axis for a logarithmic range, or its quantile for
    a normal distribution. Equal choices have distance 0, different ones 1. On a tie, the first row is used.
    """

    def __init__(self, columns: Columns, space: Space) -> None:
        self._numeric: list[tuple[str, Numeric]] = []
        self._listed: list[tuple[str, Mapping[object, int]]] = []
        positions, codes = [], []
        looked_up = ((name, matching) for name in _looked_up(space) if (matching := space.find(name)) is not None)
        for name, parameter in looked_up:
            distribution, column = parameter.distribution, columns[name]
            if isinstance(distribution, Numeric):
                self._numeric.append((name, distribution))
                positions.append(_positions_of(name, distribution, column))
            else:
                numbers: dict[object, int] = {}
                codes.append([numbers.setdefault(identity(value), len(numbers)) for value in column])
                _check_choices(name, distribution, numbers)
                self._listed.append((name, numbers))
        rows = len(next(iter(columns.values())))
        self._positions: NDArray[np.float64] = (
            np.array(positions, dtype=np.float64).reshape(len(positions), rows).T.copy()
        )
        self._codes: NDArray[np.int64] = np.array(codes, dtype=np.int64).reshape(len(codes), rows).T.copy()

    def find(self, params: Params) -> int:
        """Return the nearest row."""
        here = np.array([distribution.position(params[name]) for name, distribution in self._numeric])
        codes = np.array([numbers[identity(params[name])] for name, numbers in self._listed], dtype=np.int64)
        distances = ((self._positions - here) ** 2).sum(axis=1) + (self._codes != codes).sum(axis=1)
        return int((distances <= distances.min() + _DUST).argmax())


def _positions_of(name: str, distribution: Numeric, column: Sequence[Value]) -> list[float]:
    try:
        if (strange := next((value for value in column if not math.isfinite(value)), None)) is not None:
            raise ValueError(f"it has {strange}")
        return [distribution.position(value) for value in column]
    except (TypeError, ValueError) as error:
        raise SweepError(
            f"the table's column for {name} must hold numbers that the sweep's {type(distribution).__name__} has a "
            f"place for: {error}"
        ) from error


def _check_choices(name: str, distribution: Distribution, numbers: Mapping[object, int]) -> None:
    strange = next((value for value in distribution.grid() if identity(value) not in numbers), None)
    if strange is not None:
        raise InvalidKey(
            ("parameters", name),
            f"must hold values that the table's column has, but it has no {shown(strange)}",
            "give numbers a range (min, max): then the nearest row is taken",
        )


def identity(value: Value) -> object:
    """Return a hashable key, equal for equal values such as 1 and 1.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, sort_keys=True)
    return float(value)
