"""A space as booleans, -1 and 1: what parities are taken of."""

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
"""Cells of a number's scale: a product of three booleans tells each from the others."""

_ATTEMPTS = 1_000
"""Draws of a number before that."""


class BooleanSpace:
    """Cells of each parameter, and the booleans that tell them apart.

    - A number's cells are eight parts of its own scale, each as likely to be drawn as the others; of up to eight values
      each has its own. They are numbered in order, and the bits of that number are the booleans: the first says whether
      the number lies in the upper half.
    - A choice has a cell for each value that may be drawn. Of two, one boolean says which. Of more, there is one for
      each, of which exactly one is 1: of the bits of their places some codes would stand for no value, and a product
      of bits would say nothing that a person could read.
    - What has one value has no booleans.
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
                self.size = cells.places.stop

    @cached_property
    def alternatives(self) -> dict[int, int]:
        """Booleans of which exactly one is 1, to the place of the first of them."""
        return {place: cells.places.start for cells in self._cells if cells.exclusive for place in cells.places}

    def encode(self, params: Params) -> NDArray[np.int8] | None:
        """Give a point's booleans; None for one that is never drawn: a choice of probability 0 was named."""
        codes = []
        for cells in self._cells:
            cell = cells.of(params[cells.name])
            if cell is None:
                return None
            codes.append(cells.codes[cell])
        return np.concatenate(codes)

    def patterns(self, places: Sequence[int], settled: Mapping[int, int]) -> list[NDArray[np.int8]]:
        """Give what these booleans can be where others are settled: of each parameter, rows of their values.

        A row of each parameter, side by side, are the booleans in the order of `places`, which rise.
        """
        found = []
        for cells in self._cells:
            mine = [place - cells.places.start for place in places if place in cells.places]
            if mine:
                found.append(np.unique(cells.codes[cells.left(settled)][:, mine], axis=0))
        return found

    def draw(self, settled: Mapping[int, int], seed: int) -> dict[str, Value]:
        """Draw a point whose settled booleans have their values, by the parameters' distributions otherwise."""
        random = Random(seed)
        drawn = {cells.name: cells.draw(frozenset(cells.left(settled)), random) for cells in self._cells}
        return self._space.check(self._singles | drawn)


class _Cells(ABC):
    """Of one parameter.

    Args:
        name: The parameter's.
        first: Place of its first boolean.
        codes: Cells by booleans.
    """

    exclusive = False
    """Exactly one of its booleans is 1."""

    def __init__(self, name: str, first: int, codes: NDArray[np.int8]) -> None:
        self.name = name
        self.places = range(first, first + codes.shape[1])
        self.codes = codes

    def left(self, settled: Mapping[int, int]) -> list[int]:
        """Give the cells that have the settled booleans."""
        mine = [place for place in self.places if place in settled]
        wanted = np.array([settled[place] for place in mine], dtype=np.int8)
        codes = self.codes[:, [place - self.places.start for place in mine]]
        return [int(cell) for cell in np.flatnonzero((codes == wanted).all(axis=1))]

    @abstractmethod
    def of(self, value: Value) -> int | None:
        """Give the cell that a value lies in; None where it is never drawn."""

    @abstractmethod
    def draw(self, cells: frozenset[int], random: Random) -> Value:
        """Draw a value that lies in one of these."""


class _Number(_Cells):
    def __init__(self, name: str, first: int, distribution: Numeric, values: Sequence[float] | None) -> None:
        self._distribution = distribution
        self._few: dict[float, int] | None = None
        """The values, where they are few, to their numbers."""
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
        """Give which of the few values it is, or which part of the scale it lies in."""
        if self._few is not None:
            return self._few.get(value)
        return min(int(self._distribution.share(value) * _PARTS), _PARTS - 1)

    def of(self, value: Value) -> int | None:
        number = self._number(value)
        return None if number is None else self._cell_of.get(number)

    def draw(self, cells: frozenset[int], random: Random) -> Value:
        for _ in range(_ATTEMPTS):
            drawn = self._distribution.draw(random.getrandbits(DRAW_BITS))
            if self.of(drawn) in cells:
                return drawn
        return self._examples[min(cells)]  # practically never drawn


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
        left = sorted(cells)
        return own_copy(self._values[random.choices(left, [self._weights[cell] for cell in left])[0]])


def _cells(name: str, distribution: Distribution, first: int) -> _Cells | None:
    """Give a parameter's cells; None where it has but one."""
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
