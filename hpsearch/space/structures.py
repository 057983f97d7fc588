"""Choices whose branches have parameters of their own, and blocks that are repeated."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hpsearch.config.checks import InvalidKey, integer, nearest, shown
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Steps
from hpsearch.space.choices import Categorical, Constant
from hpsearch.space.declaring import block, check_name, declared
from hpsearch.space.distribution import Distribution, Numeric
from hpsearch.space.parameter import END, Declared, Structure
from hpsearch.space.ranges import IntUniform
from hpsearch.trial import Value

__all__ = ["Chain", "Choice", "Copies", "Repeat", "Repeated", "operation"]

_MOST_COPIES = 1_000
"""Of one block."""


@dataclass(frozen=True)
class Choice(Structure):
    """One of several branches, each with parameters of its own, and equally likely to be taken.

    Its own value is the branch's name. Of the others nothing is part of a point. A trainable sees a mapping of that one
    name to its parameters: `{"conv": {"kernel": 3}}`.

    Args:
        branches: Names to mappings of parameters, which may be empty.
    """

    kind: ClassVar[str] = "choice"

    branches: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.branches, Mapping):
            raise InvalidKey((), f"must be a mapping of branches to their parameters, got {shown(self.branches)}")
        if not self.branches:
            raise InvalidKey((), "must hold at least one branch, got none")
        found: dict[str, tuple[Declared, ...]] = {}
        for name, given in self.branches.items():
            check_name(name, (name,))
            if "." in name:
                raise InvalidKey((name,), "must be a branch's name without dots")
            found[name] = declared(given, (name,), may_be_empty=True)
        object.__setattr__(self, "branches", found)

    @cached_property
    def tag(self) -> Distribution:
        """Which branch is taken."""
        return Categorical(list(self.branches))

    def groups(self, value: Value) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the branch."""
        return [((value,), self.branches[value])]

    def every_group(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give all branches."""
        return [((name,), inside) for name, inside in self.branches.items()]

    def certain_groups(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the only branch, if there is but one."""
        return self.every_group() if len(self.branches) == 1 else []

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow a name into a branch."""
        name = parts[0]
        return (list(self.branches).index(name), (name,), self.branches[name], 1) if name in self.branches else None

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Give the branch's name to its parameters."""
        return {value: groups[(value,)]}

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Take a branch's name, alone or to its parameters."""
        if isinstance(value, str):
            name, inside = value, None
        elif isinstance(value, Mapping) and len(value) == 1:
            ((name, inside),) = value.items()
        else:
            example = next(iter(self.branches))
            raise InvalidKey(
                (), f"must be one branch to its parameters, such as {{{example}: ...}}, got {shown(value)}"
            )
        if name not in self.branches:
            raise InvalidKey((), f"must be one of the branches, got {shown(name)}", nearest(str(name), self.branches))
        return name, {(name,): {} if inside is None else inside}

    def to_json(self) -> dict[str, Value]:
        """Give the branches, in a list: their order is that of the draws, and JSON's objects have none."""
        return {"choice": [[name, [one.to_json() for one in inside]] for name, inside in self.branches.items()]}


@dataclass(frozen=True)
class Copies(Numeric):
    """How many copies there are where nothing says how many there may be: each further one with probability 1/2."""

    kind: ClassVar[str] = "copies"
    whole: ClassVar[bool] = True
    fewest_points: ClassVar[int] = 2

    min: int
    step: float | None = None
    points: int | None = None

    @cached_property
    def steps(self) -> Steps:
        """All integers from the least on."""
        return Steps(1, self.min, _MOST_COPIES)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest that may be."""
        return self.min, _MOST_COPIES

    def place(self, value: float) -> float:
        """Give the middle of the share of the draws that give this number."""
        further = value - self.min
        if further < 0:
            raise ValueError(f"{value} is below {self.min}")
        return 1.0 - 0.75 * math.ldexp(1.0, -int(further))

    def draw(self, bits: int) -> int:
        """Count the leading ones."""
        further = DRAW_BITS - (bits ^ ((1 << DRAW_BITS) - 1)).bit_length()
        return min(self.min + further, _MOST_COPIES)

    def mutate(self, value: Value, bits: int) -> Value:
        """Give one more or one less."""
        return self._beside(value, bits % 2 == 0)

    def neighbours(self, value: Value) -> list[Value]:
        """Give one less and one more."""
        return [near for near in (value - 1, value + 1) if self.min <= near <= _MOST_COPIES]

    def grid(self) -> list[Value]:
        """Refuse: there is no end."""
        raise InvalidKey(("max",), "is required for a grid over a repeated block", add=((), "max: 4"))

    def accept(self, value: object) -> int:
        """Take an integer from the least on."""
        given = integer(value, ())
        if not self.min <= given <= _MOST_COPIES:
            raise InvalidKey((), f"must be between {self.min} and {_MOST_COPIES}, got {given}")
        return given


@dataclass(frozen=True)
class Repeated(Structure):
    """What blocks and chains share: between `min` and `max` copies, each with values of its own.

    Its own value is how many there are. A trainable sees a list.
    """

    block: Any
    """What is copied; kept as what it declares."""
    min: int = 1
    max: int | None = None

    @abstractmethod
    def _declared(self) -> tuple[Declared, ...]:
        """Read the block."""

    def __post_init__(self) -> None:
        least = integer(self.min, ("min",))
        if not 0 <= least <= _MOST_COPIES:
            raise InvalidKey(("min",), f"must be between 0 and {_MOST_COPIES}, got {least}")
        object.__setattr__(self, "min", least)
        if self.max is not None:
            most = integer(self.max, ("max",))
            if not max(least, 1) <= most <= _MOST_COPIES:
                problem = f"must be between {max(least, 1)}, as min is {least}, and {_MOST_COPIES}, got {most}"
                raise InvalidKey(("max",), problem)
            object.__setattr__(self, "max", most)
        object.__setattr__(self, "block", self._declared())

    @property
    def bounded(self) -> bool:
        """Whether there is a most."""
        return self.max is not None

    @cached_property
    def tag(self) -> Distribution:
        """How many copies there are."""
        if self.max is None:
            return Copies(self.min)
        return Constant(self.min) if self.min == self.max else IntUniform(self.min, self.max)

    def groups(self, value: Value) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the copies."""
        return [((str(copy),), self.block) for copy in range(value)]

    def every_group(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give all copies, or one more than the least."""
        return self.groups(self.min + 1 if self.max is None else self.max)

    def certain_groups(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the fewest copies."""
        return self.groups(self.min)

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow a number into its copy, or `*` into all."""
        if parts[0] == "*":
            return END, ("*",), self.block, 1
        if not parts[0].isdecimal() or len(parts[0]) > len(str(_MOST_COPIES)):
            return None
        copy, below = int(parts[0]), _MOST_COPIES if self.max is None else self.max
        return (copy, parts[:1], self.block, 1) if copy < below and str(copy) == parts[0] else None

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Give a list of the copies."""
        return [groups[(str(copy),)] for copy in range(value)]

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Take a list of the copies, or how many there are."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value, {}
        if not isinstance(value, list | tuple):
            raise InvalidKey((), f"must be a list of the copies, or how many there are, got {shown(value)}")
        most = _MOST_COPIES if self.max is None else self.max
        if not self.min <= len(value) <= most:
            raise InvalidKey((), f"must have {self.min} to {most} copies, got {len(value)}")
        return len(value), {(str(copy),): inside for copy, inside in enumerate(value)}

    def _bounds(self) -> dict[str, Value]:
        return {"min": self.min} if self.max is None else {"min": self.min, "max": self.max}


@dataclass(frozen=True)
class Repeat(Repeated):
    """A block between `min` and `max` times, each copy with values of its own.

    Its own value is how many there are. A trainable sees a list of the copies.

    Args:
        block: A mapping of parameters, or a distribution, a list of choices, or a structure alone.
        min: Fewest copies.
        max: Most copies; None: there is no bound, and each further copy has a probability of 1/2.
    """

    kind: ClassVar[str] = "repeat"

    def _declared(self) -> tuple[Declared, ...]:
        return block(self.block, ())

    def to_json(self) -> dict[str, Value]:
        """Give block and bounds."""
        return {"repeat": [one.to_json() for one in self.block], **self._bounds()}


@dataclass(frozen=True)
class Chain(Repeated):
    """Between `min` and `max` layers in order, each one of the same set.

    Its own value is how many there are. A trainable sees a list of the layers: each a value of the list, or one name
    to its parameters, as `Choice` gives them.

    Args:
        block: A list of the layers that there are, or a mapping of their names to parameters of their own.
        min: Fewest layers.
        max: Most layers; None: there is no bound, and each further layer has a probability of 1/2.
    """

    kind: ClassVar[str] = "chain"

    def _declared(self) -> tuple[Declared, ...]:
        return operation(self.block)

    def to_json(self) -> dict[str, Value]:
        """Give layer and bounds."""
        return {"chain": self.block[0].to_json(), **self._bounds()}


def operation(given: object) -> tuple[Declared, ...]:
    """Read a set of operations: a list of values, or a mapping of names to parameters of their own."""
    if isinstance(given, tuple) and len(given) == 1 and isinstance(given[0], Declared):
        return given
    if isinstance(given, Mapping):
        return (Declared((), Choice(given)),)
    if isinstance(given, Categorical | Choice):
        return (Declared((), given),)
    if isinstance(given, list | tuple):
        return (Declared((), Categorical(given)),)
    raise InvalidKey((), f"must be a list of operations, or a mapping of them to their parameters, got {shown(given)}")
