"""Choices between branches with parameters, and repeated blocks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hpsearch.config.checks import InvalidKey, integer, nearest, shown
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Multiples
from hpsearch.space.choices import Categorical, Constant
from hpsearch.space.declarations import check_name, declare, declare_block
from hpsearch.space.distribution import Distribution, Numeric
from hpsearch.space.numbers import IntUniform
from hpsearch.space.parameter import END, Declared, Group, Structure
from hpsearch.trial import Value

_MOST_COPIES = 1_000
"""Maximum number of copies of a block."""


@dataclass(frozen=True)
class Choice(Structure):
    """One of several branches with their own parameters, all equally likely.

    The value of the choice is the name of the branch. Only the parameters of that branch are active. A trainable gets a
    mapping of the name to the parameters: `{"conv": {"kernel": 3}}`.

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
        branches: dict[str, tuple[Declared, ...]] = {}
        for name, parameters in self.branches.items():
            check_name(name, (name,))
            if "." in name:
                raise InvalidKey((name,), "must be a branch's name without dots")
            branches[name] = declare(parameters, (name,), may_be_empty=True)
        object.__setattr__(self, "branches", branches)

    @cached_property
    def tag(self) -> Distribution:
        """The name of the active branch."""
        return Categorical(list(self.branches))

    def groups(self, value: Value) -> Sequence[Group]:
        """Return the active branch."""
        return [((value,), self.branches[value])]

    def every_group(self) -> Sequence[Group]:
        """Return all branches."""
        return [((name,), inside) for name, inside in self.branches.items()]

    def certain_groups(self) -> Sequence[Group]:
        """Return the branch if there is only one."""
        return self.every_group() if len(self.branches) == 1 else []

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Return a mapping of the branch's name to its parameters."""
        return {value: groups[(value,)]}

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Read the name of a branch, or a mapping of it to its parameters."""
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
        """Return the branches as a list, since samples depend on their order, and JSON objects are unordered."""
        return {"choice": [[name, [item.to_json() for item in inside]] for name, inside in self.branches.items()]}


@dataclass(frozen=True)
class Copies(Numeric):
    """The number of copies of an unbounded block: each further copy has probability 1/2."""

    kind: ClassVar[str] = "copies"
    is_integer: ClassVar[bool] = True
    fewest_points: ClassVar[int] = 2

    min: int
    step: float | None = None
    points: int | None = None

    @cached_property
    def steps(self) -> Multiples:
        """All integers from the minimum on."""
        return Multiples(1, self.min, _MOST_COPIES)

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest possible number."""
        return self.min, _MOST_COPIES

    def position(self, value: float) -> float:
        """Return the middle of the interval of the unit scale that selects a number."""
        further = value - self.min
        if further < 0:
            raise ValueError(f"{value} is below {self.min}")
        return 1.0 - 0.75 * math.ldexp(1.0, -int(further))

    def draw(self, bits: int) -> int:
        """Return the minimum plus the number of leading one bits."""
        further = DRAW_BITS - (bits ^ ((1 << DRAW_BITS) - 1)).bit_length()
        return min(self.min + further, _MOST_COPIES)

    def mutate(self, value: Value, bits: int) -> Value:
        """Return one more or one less."""
        return self._next_to(value, bits % 2 == 0)

    def grid(self) -> list[Value]:
        """Raise an InvalidKey: the numbers are unbounded."""
        raise InvalidKey(("max",), "is required for a grid over a repeated block", add=((), "max: 4"))

    def every_value(self) -> None:
        """Return None: the numbers are unbounded."""
        return None

    def accept(self, value: object) -> int:
        """Check and return a number of copies."""
        count = integer(value, ())
        if not self.min <= count <= _MOST_COPIES:
            raise InvalidKey((), f"must be between {self.min} and {_MOST_COPIES}, got {count}")
        return count


@dataclass(frozen=True)
class RepeatedStructure(Structure):
    """Base class of blocks and chains: between `min` and `max` copies, each with its own values.

    The value of the structure is the number of copies. A trainable gets a list.
    """

    block: Any
    """The block that is copied; converted to declarations."""
    min: int = 1
    max: int | None = None

    @abstractmethod
    def _declared(self) -> tuple[Declared, ...]:
        """Return the declarations of the block."""

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
        """Whether there is a maximum."""
        return self.max is not None

    @cached_property
    def tag(self) -> Distribution:
        """The number of copies."""
        if self.max is None:
            return Copies(self.min)
        return Constant(self.min) if self.min == self.max else IntUniform(self.min, self.max)

    def groups(self, value: Value) -> Sequence[Group]:
        """Return the copies."""
        return [((str(copy),), self.block) for copy in range(value)]

    def every_group(self) -> Sequence[Group]:
        """Return all possible copies; one more than the minimum if there is no maximum."""
        return self.groups(self.min + 1 if self.max is None else self.max)

    def certain_groups(self) -> Sequence[Group]:
        """Return the minimum copies."""
        return self.groups(self.min)

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow an index into its copy, or `*` into all copies."""
        if parts[0] == "*":
            return END, ("*",), self.block, 1
        if not parts[0].isdecimal() or len(parts[0]) > len(str(_MOST_COPIES)):
            return None
        copy, below = int(parts[0]), _MOST_COPIES if self.max is None else self.max
        return (copy, parts[:1], self.block, 1) if copy < below and str(copy) == parts[0] else None

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Return a list of the copies."""
        return [groups[(str(copy),)] for copy in range(value)]

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Read a list of the copies, or their number."""
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
class Repeat(RepeatedStructure):
    """A block that is repeated `min` to `max` times, each copy with its own values.

    The value of the structure is the number of copies. A trainable gets a list of the copies.

    Args:
        block: A mapping of parameters; or a single distribution, list of choices, or structure.
        min: Minimum number of copies.
        max: Maximum number of copies; None: unbounded, and each further copy has probability 1/2.
    """

    kind: ClassVar[str] = "repeat"

    def _declared(self) -> tuple[Declared, ...]:
        return declare_block(self.block, ())

    def to_json(self) -> dict[str, Value]:
        """Return the block and the bounds as JSON."""
        return {"repeat": [item.to_json() for item in self.block], **self._bounds()}


@dataclass(frozen=True)
class Chain(RepeatedStructure):
    """A sequence of `min` to `max` layers, each from the same set.

    The value of the structure is the number of layers. A trainable gets a list of the layers. A layer is a value, or
    for a mapping of names to parameters, the same as for a `Choice`.

    Args:
        block: A list of possible layers, or a mapping of their names to their parameters.
        min: Minimum number of layers.
        max: Maximum number of layers; None: unbounded, and each further layer has probability 1/2.
    """

    kind: ClassVar[str] = "chain"

    def _declared(self) -> tuple[Declared, ...]:
        return declare_operations(self.block)

    def to_json(self) -> dict[str, Value]:
        """Return the layers and the bounds as JSON."""
        return {"chain": self.block[0].to_json(), **self._bounds()}


def declare_operations(operations: object) -> tuple[Declared, ...]:
    """Read a set of operations: a list of values, or a mapping of names to their parameters."""
    if isinstance(operations, tuple) and len(operations) == 1 and isinstance(operations[0], Declared):
        return operations
    if isinstance(operations, Mapping):
        return (Declared((), Choice(operations)),)
    if isinstance(operations, Categorical | Choice):
        return (Declared((), operations),)
    if isinstance(operations, list | tuple):
        return (Declared((), Categorical(operations)),)
    problem = f"must be a list of operations, or a mapping of them to their parameters, got {shown(operations)}"
    raise InvalidKey((), problem)
