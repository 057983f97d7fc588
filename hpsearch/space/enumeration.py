"""All points of a finite space in order: counted, and each by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.parameter import Declared, Parameter, Structure
from hpsearch.space.tree import Tree
from hpsearch.space.walk import Broken, Choose
from hpsearch.trial import Params, Value

__all__ = ["Enumeration"]

_MOST_FILTERED = 100_000
_MOST_CALLED = 2_000
"""Points that are gone through one by one, where conditions or constraints leave some out."""


class Enumeration:
    """The points whose parameters have listed values; the first parameter varies slowest.

    Where every parameter has its values whatever the others are, but for those of branches and copies, the points are
    counted by products and sums, and each is found by its number. Else they are gone through.

    Args:
        tree: The parameters.
        build: Gives a point, or raises `Broken`.
        constrained: `build` may do so.
        values: Gives the values of a parameter; None: they can't be listed.
        key: Gives what equal points share, of which one is enough; None: no two that are written otherwise are equal.
    """

    def __init__(
        self,
        tree: Tree,
        build: Callable[[Choose], dict[str, Value]],
        constrained: bool,
        values: Callable[[Distribution], Sequence[Value] | None],
        key: Callable[[Params], str] | None = None,
    ) -> None:
        self._key = key
        self._tree = tree
        self._build = build
        self._constrained = constrained
        self._values = values
        self._listed: dict[tuple[str, ...], Sequence[Value]] = {}
        self._counts: dict[int, int] = {}

    @property
    def bound(self) -> int:
        """Number of points as if all conditions and constraints held: there are no more.

        Raises:
            InvalidKey: A parameter's values can't be listed.
        """
        return self._count(self._tree.declared, ())

    @property
    def size(self) -> int:
        """Number of points.

        Raises:
            InvalidKey: A parameter's values can't be listed, or the points are too many to be gone through.
        """
        if not self._filtered:
            return self.bound
        if self._kept is None:
            problem = (
                f"must have at most {self._most:,} points, as conditions, constraints or equal cells rule some out"
            )
            raise InvalidKey((), problem, "narrow the parameters, or take random or tpe")
        return len(self._kept)

    @property
    def counted(self) -> int | None:
        """Number of points; None where there is none, or it takes too long."""
        try:
            return self.size
        except InvalidKey:
            return None

    def point(self, index: int) -> dict[str, Value]:
        """Give a point by its number.

        Raises:
            SweepError: There is none of this number.
            InvalidKey: See `size`.
        """
        if not 0 <= index < self.size:
            raise SweepError(f"a grid point must be between 0 and {self.size - 1}, got {index}")
        return self._numbered(index) if self._kept is None else dict(own_copy(self._kept[index]))

    def points(self, most: int) -> list[dict[str, Value]] | None:
        """Give all points; None where they are more than this, or can't be listed."""
        size = self.counted
        return None if size is None or size > most else [self.point(index) for index in range(size)]

    @property
    def _most(self) -> int:
        """Points that are gone through to see which are left out."""
        return _MOST_CALLED if self._tree.calls else _MOST_FILTERED

    @cached_property
    def _filtered(self) -> bool:
        """Whether conditions, derived values, constraints or equal points may leave points out."""
        return (
            self._constrained
            or self._key is not None
            or any(one.when is not None or isinstance(one.holds, Derived) for one in self._tree.everything())
        )

    @cached_property
    def _kept(self) -> list[dict[str, Value]] | None:
        """The points that are left; None where none is left out, or they are too many to be gone through."""
        if not self._filtered:
            return None
        found: dict[object, dict[str, Value]] = {}
        for place, point in enumerate(self._gone_through()):
            if place >= self._most:
                return None
            if point is not None:
                found.setdefault(place if self._key is None else self._key(point), point)
        return list(found.values())

    def _gone_through(self) -> Iterator[dict[str, Value] | None]:
        """Give each point in turn; None for one that breaks a constraint."""
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
                yield self._build(choose)
            except Broken:
                yield None
            while digits and digits[-1] + 1 == bases[len(digits) - 1]:
                digits.pop()
            if not digits:
                return
            digits[-1] += 1

    def _values_of(self, path: tuple[str, ...], distribution: Distribution) -> Sequence[Value]:
        if path not in self._listed:
            try:
                values = self._values(distribution)
            except InvalidKey as error:
                raise error.under(path) from None
            if values is None:
                raise InvalidKey(path, "must have values that can be listed")
            self._listed[path] = values
        return self._listed[path]

    def _count(self, declared: Sequence[Declared], path: tuple[str, ...]) -> int:
        if id(declared) not in self._counts:
            self._counts[id(declared)] = prod(self._count_one(one, path) for one in declared)
        return self._counts[id(declared)]

    def _count_one(self, one: Declared, path: tuple[str, ...]) -> int:
        return sum(count for _, count in self._by_tag(one, path + one.path))

    def _by_tag(self, one: Declared, here: tuple[str, ...]) -> Iterator[tuple[Value, int]]:
        """Give each value that is decided first, and the number of points that go on from it."""
        holds = one.holds
        if isinstance(holds, Derived):
            yield None, 1
            return
        if not isinstance(holds, Structure):
            yield from ((value, 1) for value in self._values_of(here, holds))
            return
        for tag in [None] if holds.tag is None else self._values_of(here, holds.tag):
            yield tag, prod(self._count(inside, here + inner) for inner, inside in holds.groups(tag))

    def _tag_at(self, one: Declared, here: tuple[str, ...], digit: int) -> tuple[Value, int]:
        """Find the value that is decided first, and the number among the points that go on from it."""
        for value, count in self._by_tag(one, here):
            if digit < count:
                return value, digit
            digit -= count
        raise IndexError(digit)

    def _numbered(self, index: int) -> dict[str, Value]:
        """Find the values of a point by its number: digits of mixed bases, the last parameter's the least."""
        found: dict[str, Value] = {}
        self._number(self._tree.declared, (), index, found)
        return self._build(lambda parameter: own_copy(found[parameter.name]))

    def _number(self, declared: Sequence[Declared], path: tuple[str, ...], index: int, found: dict[str, Value]) -> None:
        for one in reversed(declared):
            here = path + one.path
            index, digit = divmod(index, self._count_one(one, path))
            value, digit = self._tag_at(one, here, digit)
            if not isinstance(one.holds, Structure):
                found[".".join(here)] = value
                continue
            if one.holds.tag is not None:
                found[".".join(here)] = value
            for inner, inside in reversed(one.holds.groups(value)):
                digit, rest = divmod(digit, self._count(inside, here + inner))
                self._number(inside, here + inner, rest, found)
