"""From values to a point: which parameters apply is found as they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpsearch.config.checks import InvalidKey, KeyPath
from hpsearch.space.derived import Derived, Refused
from hpsearch.space.expressions import ABSENT, Expression, Uncomputable
from hpsearch.space.nesting import nested
from hpsearch.space.parameter import Declared, Parameter, Structure
from hpsearch.trial import Value

if TYPE_CHECKING:
    from hpsearch.space.tree import Tree

__all__ = ["UNKNOWN", "Broken", "Choose", "Walk"]

Choose = Callable[[Parameter], Value]
"""Gives the value of a parameter that applies, or `UNKNOWN`."""

Read = Callable[[str], Value]
"""Gives the value of a name in an expression, or `ABSENT`."""

UNKNOWN: Value = object()
"""No value yet: what hangs on it is left open."""


class Broken(InvalidKey):
    """A point breaks a constraint, or has no value for what is derived."""


class _Unknown(Exception):
    """A parameter was read that has no value yet."""


class Walk:
    """One walk through a space, which asks for each parameter that applies, in order.

    Args:
        tree: The space.
        choose: Gives the values.
    """

    def __init__(self, tree: Tree, choose: Choose) -> None:
        self._tree = tree
        self._choose = choose
        self.point: dict[str, Value] = {}
        """What was found: flat names to values."""
        self._unknown: set[str] = set()
        """Names of what has no value yet, or may not apply; what they hold is unknown with them."""
        self._broken: Broken | None = None
        """Of a derived value or a condition that can't be computed, the first one."""
        self._fill(tree.declared, ())

    def broken(self, constraints: Sequence[Expression]) -> list[Broken]:
        """Give what is wrong with the point, as far as its values are known: derived values, and constraints."""
        found = [] if self._broken is None else [self._broken]
        for place, constraint in enumerate(constraints):
            key = ("constraints", place)
            try:
                if self._said(constraint.holds, (), key) is not False:
                    continue
            except Broken as error:
                found.append(error)
                continue
            values = [f"{name} is {self.point[name]!r}" for name in constraint.names if name in self.point]
            told = f": {', '.join(values)}" if values else ""
            found.append(Broken(key, f"{constraint} must hold, but doesn't{told}"))
        return found

    def _fill(self, declared: Sequence[Declared], path: tuple[str, ...]) -> None:
        for one in declared:
            here = (*path, *one.path)
            if one.when is not None:
                applies = self._applies(one.when, here)
                if applies is UNKNOWN:
                    self._unknown.add(".".join(here))
                if applies is not True:
                    continue
            holds = one.holds
            if isinstance(holds, Derived):
                self._derive(holds, here)
            elif not isinstance(holds, Structure):
                self._take(self._tree.parameter(here, holds, None))
            else:
                tag = None if holds.tag is None else self._take(self._tree.parameter(here, holds.tag, holds))
                if tag is not UNKNOWN:
                    for inner, inside in holds.groups(tag):
                        self._fill(inside, here + inner)

    def _applies(self, when: Expression, path: tuple[str, ...]) -> Value:
        """Say whether a condition is true, as far as its values are known."""
        try:
            return self._said(when.holds, path[:-1], (*path, "when"))
        except Broken as error:
            self._broken = self._broken or error
            return False

    def _take(self, parameter: Parameter) -> Value:
        value = self._choose(parameter)
        if value is UNKNOWN:
            self._unknown.add(parameter.name)
        else:
            self.point[parameter.name] = value
        return value

    def _derive(self, derived: Derived, path: tuple[str, ...]) -> None:
        name = ".".join(path)
        try:
            if derived.function is None:
                value = self._said(derived.parsed.value, path[:-1], path)
            else:
                value = self._computed(derived, path)
        except Broken as error:
            self._broken = self._broken or error
            return
        if value is UNKNOWN:
            self._unknown.add(name)
        elif value is not ABSENT:
            self.point[name] = value

    def _computed(self, derived: Derived, path: tuple[str, ...]) -> Value:
        """Give what a function makes of all that stands above it, once that is known."""
        if self._unknown or self._broken is not None:
            return UNKNOWN
        try:
            return derived.computed(nested(self._tree.declared, self.point))
        except Refused as error:
            raise Broken(path, str(error)) from None
        except InvalidKey as error:
            raise error.under(path) from None

    def _said(self, ask: Callable[[Read], Value], scope: tuple[str, ...], key: KeyPath) -> Value:
        """Give the value of an expression, as far as it has one.

        Args:
            ask: Gives it, once it can read parameters.
            scope: Where the expression stands: names are looked for there first.
            key: Where it was written.
        """
        try:
            found = ask(lambda name: self._gathered(self._tree.resolved(name, scope)))
        except _Unknown:
            return UNKNOWN
        except Uncomputable as error:
            raise Broken(key, str(error)) from None
        except InvalidKey as error:
            raise error.under(key) from None
        return ABSENT if found is None else found

    def _gathered(self, path: tuple[str, ...]) -> Value:
        """Give the value of a parameter; with `*` in its path the list of those of all copies."""
        if "*" not in path:
            name = ".".join(path)
            if name not in self.point and any(name == one or name.startswith(f"{one}.") for one in self._unknown):
                raise _Unknown
            return self.point.get(name, ABSENT)
        star = path.index("*")
        copies = self._gathered(path[:star])
        if copies is ABSENT:
            return ABSENT
        found: list[Value] = []
        for copy in range(copies):
            inner = (*path[:star], str(copy), *path[star + 1 :])
            value = self._gathered(inner)
            if value is not ABSENT:
                found += value if "*" in inner else [value]
        return found
