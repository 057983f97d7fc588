"""Enumeration of finite spaces: the number of configurations, and the configuration of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod

from hpsearch.config.checks import InvalidKey, under
from hpsearch.errors import SweepError
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.mutation import Mutations
from hpsearch.space.parameter import Declared, Parameter, Structure
from hpsearch.space.walk import Broken
from hpsearch.trial import Params, Value

_MOST_FILTERED = 100_000
"""Maximum number of configurations to filter one by one."""

_MOST_CALLED = 2_000
"""The same, if a function is called for each configuration."""


class Enumeration:
    """All configurations of listed values; the first parameter varies slowest.

    Without conditions and constraints, configurations are counted by products and sums, and an index is converted to a
    configuration directly. Otherwise all of them are listed and filtered.

    Args:
        space: The parameters and constraints.
        values: Returns the values of a parameter, or None if they cannot be listed.
        key: Returns the key that equal configurations share, of which one is kept; None: all differ.
    """

    def __init__(
        self,
        space: Mutations,
        values: Callable[[Distribution], Sequence[Value] | None],
        key: Callable[[Params], str] | None = None,
    ) -> None:
        self._key = key
        self._space = space
        self._values = values
        self._listed: dict[tuple[str, ...], Sequence[Value]] = {}
        self._counts: dict[int, int] = {}

    @property
    def bound(self) -> int:
        """Upper bound of the number of configurations: without conditions and constraints.

        Raises:
            InvalidKey: The values of a parameter cannot be listed.
        """
        return self._count(self._space.declared, ())

    @property
    def size(self) -> int:
        """Number of configurations.

        Raises:
            InvalidKey: The values of a parameter cannot be listed, or there are too many configurations to filter.
        """
        if not self._filtered:
            return self.bound
        if self._passing is None:
            problem = (
                f"must have at most {self._most:,} points, as conditions, constraints or equal cells rule some out"
            )
            raise InvalidKey((), problem, "narrow the parameters, or take random or tpe")
        return len(self._passing)

    @property
    def counted(self) -> int | None:
        """Number of configurations; None if it is infinite or takes too long to count."""
        try:
            return self.size
        except InvalidKey:
            return None

    def point(self, index: int) -> dict[str, Value]:
        """Return the configuration of an index.

        Raises:
            SweepError: The index is out of range.
            InvalidKey: See `size`.
        """
        if not 0 <= index < self.size:
            raise SweepError(f"a grid point must be between 0 and {self.size - 1}, got {index}")
        return self._numbered(index) if self._passing is None else dict(own_copy(self._passing[index]))

    def points(self, most: int) -> list[dict[str, Value]] | None:
        """Return all configurations; None if there are more than `most`, or they cannot be listed."""
        size = self.counted
        return None if size is None or size > most else [self.point(index) for index in range(size)]

    @property
    def _most(self) -> int:
        """Maximum number of configurations to filter."""
        return _MOST_CALLED if self._space.calls else _MOST_FILTERED

    @cached_property
    def _filtered(self) -> bool:
        """Whether conditions, derived values, constraints or equal configurations may rule some out."""
        return (
            bool(self._space.constraints)
            or self._key is not None
            or any(item.when is not None or isinstance(item.holds, Derived) for _, item in self._space.everything())
        )

    @cached_property
    def _passing(self) -> list[dict[str, Value]] | None:
        """The configurations that pass the filter; None if nothing is filtered, or there are too many."""
        if not self._filtered:
            return None
        configurations: dict[object, dict[str, Value]] = {}
        for index, point in enumerate(self._candidates()):
            if index >= self._most:
                return None
            if point is not None:
                configurations.setdefault(index if self._key is None else self._key(point), point)
        return list(configurations.values())

    def _candidates(self) -> Iterator[dict[str, Value] | None]:
        """Yield each configuration in order; None for one that breaks a constraint."""
        digits: list[int] = []
        while True:
            bases: list[int] = []

            def choose(parameter: Parameter, bases: list[int] = bases) -> Value:
                values = self._values_of(parameter.path, parameter.distribution)
                if len(bases) == len(digits):
                    digits.append(0)
                bases.append(len(values))
                return own_copy(values[digits[len(bases) - 1]])

            try:
                yield self._space.build(choose)
            except Broken:
                yield None
            while digits and digits[-1] + 1 == bases[len(digits) - 1]:
                digits.pop()
            if not digits:
                return
            digits[-1] += 1

    def _values_of(self, path: tuple[str, ...], distribution: Distribution) -> Sequence[Value]:
        if path not in self._listed:
            with under(path):
                values = self._values(distribution)
            if values is None:
                raise InvalidKey(path, "must have values that can be listed")
            self._listed[path] = values
        return self._listed[path]

    def _count(self, declared: Sequence[Declared], path: tuple[str, ...]) -> int:
        if id(declared) not in self._counts:
            self._counts[id(declared)] = prod(self._count_one(item, path) for item in declared)
        return self._counts[id(declared)]

    def _count_one(self, item: Declared, path: tuple[str, ...]) -> int:
        return sum(count for _, count in self._by_tag(item, path + item.path))

    def _by_tag(self, item: Declared, here: tuple[str, ...]) -> Iterator[tuple[Value, int]]:
        """Yield each value of a parameter or tag, and the number of configurations that have it."""
        holds = item.holds
        if isinstance(holds, Derived):
            yield None, 1
            return
        if not isinstance(holds, Structure):
            yield from ((value, 1) for value in self._values_of(here, holds))
            return
        for tag in [None] if holds.tag is None else self._values_of(here, holds.tag):
            yield tag, prod(self._count(inside, here + inner) for inner, inside in holds.groups(tag))

    def _tag_at(self, item: Declared, here: tuple[str, ...], digit: int) -> tuple[Value, int]:
        """Return the value of a parameter or tag for a digit, and the index among the configurations that have it."""
        for value, count in self._by_tag(item, here):
            if digit < count:
                return value, digit
            digit -= count
        raise IndexError(digit)

    def _numbered(self, index: int) -> dict[str, Value]:
        """Return the configuration of an index: mixed-radix digits, the last parameter least significant."""
        values: dict[str, Value] = {}
        self._decode(self._space.declared, (), index, values)
        return self._space.build(lambda parameter: own_copy(values[parameter.name]))

    def _decode(self, declared: Sequence[Declared], path: tuple[str, ...], index: int, out: dict[str, Value]) -> None:
        for item in reversed(declared):
            here = path + item.path
            index, digit = divmod(index, self._count_one(item, path))
            value, digit = self._tag_at(item, here, digit)
            if not isinstance(item.holds, Structure):
                out[".".join(here)] = value
                continue
            if item.holds.tag is not None:
                out[".".join(here)] = value
            for inner, inside in reversed(item.holds.groups(value)):
                digit, remainder = divmod(digit, self._count(inside, here + inner))
                self._decode(inside, here + inner, remainder, out)
