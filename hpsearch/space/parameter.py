"""The parts of a space: parameters, and structures that contain parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.trial import Value

END = 1 << 62
"""Index that is greater than those of all copies of a block."""

Position = tuple[int, ...]
"""Position of a parameter in the order of a space. Positions compare as the parameters are ordered."""


@dataclass(frozen=True)
class Parameter:
    """A leaf of the space. It has one value in a configuration."""

    path: tuple[str, ...]
    """Names of the enclosing groups and structures, then its own. A name may contain dots."""
    distribution: Distribution
    holder: Structure | None = field(default=None, compare=False, repr=False)
    """The structure whose tag (such as the number of copies) this parameter is; None for other parameters."""

    @cached_property
    def name(self) -> str:
        """The flat name: `"optimizer.lr"`."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Declared:
    """A parameter or structure as the user declared it."""

    path: tuple[str, ...]
    """Path within the enclosing structure, or from the top; empty for a block of one unnamed parameter."""
    holds: Distribution | Structure
    when: Expression | None = None
    """The condition under which it is active; None: always."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The flat name, split at its dots."""
        return tuple(".".join(self.path).split(".")) if self.path else ()

    def to_json(self) -> dict[str, Value]:
        """Return the declaration as JSON."""
        when = {} if self.when is None else {"when": self.when.text}
        return {"path": list(self.path), **self.holds.to_json(), **when}


Group = tuple[tuple[str, ...], Sequence[Declared]]
"""The path of a group of parameters within its structure, and its declarations."""


class Structure(ABC):
    """Contains groups of parameters. The value of its tag decides which groups are active.

    Immutable, and validated when it is built.
    """

    kind: ClassVar[str]
    """Name in JSON and in sweep files."""
    names_own: ClassVar[bool] = False
    """Whether it names its parameters itself, such as the edges of a cell."""

    @property
    def tag(self) -> Distribution | None:
        """The distribution that is sampled before the parameters inside, under the name of the structure."""
        return None

    @property
    def bounded(self) -> bool:
        """Whether the number of possible groups is bounded."""
        return True

    @abstractmethod
    def groups(self, value: Value) -> Sequence[Group]:
        """Return the groups that are active for a value of the tag, which is None without a tag."""

    def every_group(self) -> Sequence[Group]:
        """Return all possible groups; if the structure is unbounded, the certain groups and one more."""
        return self.groups(None)

    def certain_groups(self) -> Sequence[Group]:
        """Return the groups that are active for every value of the tag."""
        return self.every_group()

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow a flat name into a group.

        Args:
            parts: The remaining parts of the name; at least one.

        Returns:
            The index of the group, its path, its declarations, and the number of parts that were used; None if there is
            no such group.
        """
        for index, (path, declared) in enumerate(self.every_group()):
            if parts[: len(path)] == path:
                return index, path, declared, len(path)
        return None

    @abstractmethod
    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Return the structure as a trainable gets it, from the value of its tag and its nested groups."""

    @abstractmethod
    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Undo `nest`.

        Raises:
            InvalidKey: The value does not match the structure.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Value]:
        """Return the structure as JSON, under the key of its kind."""


@dataclass(frozen=True)
class ParameterGroup(Structure):
    """Parameters under one name that share a condition."""

    kind: ClassVar[str] = "parameters"

    declared: tuple[Declared, ...]

    def groups(self, value: Value) -> Sequence[Group]:
        """Return the parameters, as one group."""
        return [((), self.declared)]

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Return the group as a mapping."""
        return groups[()]

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Undo `nest`."""
        return None, {(): value}

    def to_json(self) -> dict[str, Value]:
        """Return the parameters as JSON."""
        return {"parameters": [item.to_json() for item in self.declared]}
