"""What a space is made of: single parameters, and structures that hold others inside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.trial import Value

__all__ = ["END", "Declared", "Group", "Parameter", "Place", "Structure"]

END = 1 << 62
"""Behind all copies of a block."""

Place = tuple[int, ...]
"""Where a parameter stands in the order of a space: places compare as the parameters follow each other."""


@dataclass(frozen=True)
class Parameter:
    """A leaf of the space: what has one value at a point."""

    path: tuple[str, ...]
    """Names of what is around it, and its own. A name may hold dots and stays one name."""
    distribution: Distribution
    holder: Structure | None = field(default=None, compare=False, repr=False)
    """The structure whose first decision it is, such as how many copies there are."""

    @cached_property
    def name(self) -> str:
        """The flat name: `"optimizer.lr"`."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Declared:
    """A parameter or a structure as it was asked for."""

    path: tuple[str, ...]
    """From the structure around it, or from the top; empty for a block that is nothing but one parameter."""
    holds: Distribution | Structure
    when: Expression | None = None
    """It applies where this is true."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The path as it is split by the dots of flat names."""
        return tuple(".".join(self.path).split(".")) if self.path else ()

    def to_json(self) -> dict[str, Value]:
        """Give it as JSON."""
        when = {} if self.when is None else {"when": self.when.text}
        return {"path": list(self.path), **self.holds.to_json(), **when}


class Structure(ABC):
    """Holds groups of parameters, of which its own value says which there are. Frozen, and checked when it is built."""

    kind: ClassVar[str]
    """Name in JSON and in sweep files."""
    names_own: ClassVar[bool] = False
    """It names what it holds itself, such as the edges of a cell."""

    @property
    def tag(self) -> Distribution | None:
        """What is decided before the parameters inside, and stands under the structure's own name; None: nothing."""
        return None

    @property
    def bounded(self) -> bool:
        """Whether the groups that there may be can be listed."""
        return True

    @abstractmethod
    def groups(self, value: Value) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the groups that there are where the tag has this value: each as a path from here, and what it holds."""

    @abstractmethod
    def every_group(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give all groups that there may be; of an unbounded structure those that there are at least, and one more."""

    def certain_groups(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the groups that there are whatever the tag's value."""
        return self.every_group()

    @abstractmethod
    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow a flat name into a group.

        Args:
            parts: What is left of the name; at least one.

        Returns:
            The group's place, its path, what it holds, and how many of the parts that took. None: there is none such.
        """

    @abstractmethod
    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Give the structure as a trainable sees it, from its tag's value and its groups as they are seen."""

    @abstractmethod
    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Undo `nest`.

        Raises:
            InvalidKey: It isn't such a structure.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Value]:
        """Give the structure as JSON, under the key of its kind."""


@dataclass(frozen=True)
class Group(Structure):
    """Parameters under one name that apply together."""

    kind: ClassVar[str] = "parameters"

    declared: tuple[Declared, ...]

    def groups(self, value: Value) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the one group."""
        return [((), self.declared)]

    def every_group(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Give the one group."""
        return self.groups(None)

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Go on with the same parts."""
        return 0, (), self.declared, 0

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Give the group as a mapping."""
        return groups[()]

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Give the mapping back."""
        return None, {(): value}

    def to_json(self) -> dict[str, Value]:
        """Give what it holds."""
        return {"parameters": [one.to_json() for one in self.declared]}
