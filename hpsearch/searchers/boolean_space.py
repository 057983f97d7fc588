"""A space as booleans, -1 and 1."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from hpsearch.seeds import DRAW_BITS
from hpsearch.space import Categorical, Distribution, Space
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.trial import Params, Value

__all__ = ["BooleanSpace"]

_PARTS = 8
"""Cells of a number's scale, which three booleans distinguish."""

_ATTEMPTS = 1_000
"""Samples of a number before an example of a cell is taken."""


class BooleanSpace:
    """Cells of each parameter, and the booleans that distinguish them.

    - A number has eight cells of equal probability on its own scale, or one for each value if there are up to eight.
      They are numbered in order, and the bits of that number are the booleans: the first is 1 in the upper half.
    - A choice has a cell for each value that can be sampled. Two values have one boolean. More have one each, of which
      exactly one is 1 (one-hot): with the bits of their indices, some codes would have no value, and a product of bits
      would have no meaning.
    - A parameter with one value has no booleans.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._cells: list[_Cells] = []
        self._singles: dict[str, Value] = {}
        self.size = 0
        """Number of booleans."""
        for parameter in space.parameters:
            if not parameter.distribution.searched:
                continue
            cells = _cells(parameter.name, parameter.distribution, self.size)
            if cells is None:
                self._singles[parameter.name] = parameter.distribution.draw(0)
            else:
                self._cells.append(cells)
                self.size = cells.indices.stop

    @cached_property
    def alternatives(self) -> dict[int, int]:
        """Booleans of which exactly one is 1, to the index of the first of them."""
        return {index: cells.indices.start for cells in self._cells if cells.exclusive for index in cells.indices}

    def encode(self, params: Params) -> NDArray[np.int8] | None:
        """Return a configuration's booleans; None if it has a choice of probability 0."""
        codes = []
        for cells in self._cells:
            cell = cells.of(params[cells.name])
            if cell is None:
                return None
            codes.append(cells.codes[cell])
        return np.concatenate(codes)

    def patterns(self, indices: Sequence[int], fixed: Mapping[int, int]) -> list[NDArray[np.int8]]:
        """Return the possible values of some booleans while others are fixed: an array of rows for each parameter.

        The columns of all arrays together are the booleans in the order of `indices`, which rise.
        """
        patterns = []
        for cells in self._cells:
            columns = [index - cells.indices.start for index in indices if index in cells.indices]
            if columns:
                patterns.append(np.unique(cells.codes[cells.matching(fixed)][:, columns], axis=0))
        return patterns

    def draw(self, fixed: Mapping[int, int], seed: int) -> dict[str, Value]:
        """Sample a configuration with the fixed booleans, by the parameters' distributions otherwise."""
        random = Random(seed)
        params = {cells.name: cells.draw(frozenset(cells.matching(fixed)), random) for cells in self._cells}
        return self._space.check(self._singles | params)


class _Cells(ABC):
    """The cells of one parameter.

    Args:
        name: The parameter's name.
        first: Index of its first boolean.
        codes: [cells, booleans].
    """

    exclusive = False
    """Exactly one of its booleans is 1."""

    def __init__(self, name: str, first: int, codes: NDArray[np.int8]) -> None:
        self.name = name
        self.indices = range(first, first + codes.shape[1])
        self.codes = codes

    def matching(self, fixed: Mapping[int, int]) -> list[int]:
        """Return the cells that have the fixed booleans."""
        known = [index for index in self.indices if index in fixed]
        wanted = np.array([fixed[index] for index in known], dtype=np.int8)
        codes = self.codes[:, [index - self.indices.start for index in known]]
        return [int(cell) for cell in np.flatnonzero((codes == wanted).all(axis=1))]

    @abstractmethod
    def of(self, value: Value) -> int | None:
        """Return the cell of a value; None if the value has probability 0."""

    @abstractmethod
    def draw(self, cells: frozenset[int], random: Random) -> Value:
        """Sample a value from some of the cells."""


class _Number(_Cells):
    def __init__(self, name: str, first: int, distribution: Numeric, values: Sequence[float] | None) -> None:
        self._distribution = distribution
        self._few: dict[float, int] | None = None
        """The values to their numbers, if they are few."""
        if values is not None and len(values) <= _PARTS:
            self._few = {value: number for number, value in enumerate(values)}
        if values is None:
            numbers = list(range(_PARTS))
            self._examples = [distribution.draw((2 * part + 1 << DRAW_BITS) // (2 * _PARTS)) for part in numbers]
        else:
            examples = {number: value for value in values if (number := self._number(value)) is not None}
            numbers, self._examples = list(examples), list(examples.values())
        self._cell_of = {number: cell for cell, number in enumerate(numbers)}
        bits = np.array([[1 if number >> bit & 1 else -1 for bit in (2, 1, 0)] for number in numbers], dtype=np.int8)
        super().__init__(name, first, bits[:, (bits != bits[0]).any(axis=0)])

    def _number(self, value: float) -> int | None:
        """Return which of the few values it is, or which part of the scale it is in."""
        if self._few is not None:
            return self._few.get(value)
        return min(int(self._distribution.share(value) * _PARTS), _PARTS - 1)

    def of(self, value: Value) -> int | None:
        number = self._number(value)
        return None if number is None else self._cell_of.get(number)

    def draw(self, cells: frozenset[int], random: Random) -> Value:
        for _ in range(_ATTEMPTS):
            value = self._distribution.draw(random.getrandbits(DRAW_BITS))
            if self.of(value) in cells:
                return value
        return self._examples[min(cells)]  # practically never sampled


class _Choice(_Cells):
    def __init__(self, name: str, first: int, distribution: Categorical) -> None:
        self._values = distribution.every_value()
        self._weights = [distribution.weight(value) for value in self._values]
        self._cell_of = {_key(value): cell for cell, value in enumerate(self._values)}
        count = len(self._values)
        self.exclusive = count > 2
        codes = 2 * np.eye(count, dtype=np.int8) - 1
        super().__init__(name, first, codes if self.exclusive else codes[:, 1:])

    def of(self, value: Value) -> int | None:
        return self._cell_of.get(_key(value))

    def draw(self, cells: frozenset[int], random: Random) -> Value:
        ordered = sorted(cells)
        return own_copy(self._values[random.choices(ordered, [self._weights[cell] for cell in ordered])[0]])


def _cells(name: str, distribution: Distribution, first: int) -> _Cells | None:
    """Return a parameter's cells; None if it has only one."""
    values = distribution.every_value()
    if values is not None and len(values) == 1:
        return None
    if isinstance(distribution, Categorical):
        return _Choice(name, first, distribution)
    if isinstance(distribution, Numeric):
        return _Number(name, first, distribution, values)
    raise TypeError(f"a distribution must be a choice or one of numbers, got {type(distribution).__name__}")


def _key(value: Value) -> str:
    return json.dumps(value, sort_keys=True)
