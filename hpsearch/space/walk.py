"""Building a configuration value by value: earlier values decide which later parameters are active."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpsearch.config.checks import InvalidKey, KeyPath
from hpsearch.space.derived import Derived, RejectedConfiguration
from hpsearch.space.expressions import ABSENT, Expression, Uncomputable
from hpsearch.space.parameter import Declared, Parameter, Structure
from hpsearch.space.tree import Tree, nested
from hpsearch.trial import Value

Choose = Callable[[Parameter], Value]
"""Returns the value of an active parameter, or `UNKNOWN`."""

Read = Callable[[str], Value]
"""Returns the value of a name in an expression, or `ABSENT`."""

UNKNOWN: Value = object()
"""Stands for a value that is not known yet. Values that depend on it are not known either."""


class Broken(InvalidKey):
    """A configuration breaks a constraint, or a derived value cannot be computed."""


class _Unknown(Exception):
    """A parameter was read whose value is not known yet."""


class Walk:
    """A pass through a space that chooses a value for each active parameter, in order.

    Args:
        tree: The parameters.
        choose: Returns the value of a parameter.
    """

    def __init__(self, tree: Tree, choose: Choose) -> None:
        self._tree = tree
        self._choose = choose
        self.point: dict[str, Value] = {}
        """The configuration: flat names to values."""
        self._unknown: set[str] = set()
        """Names of parameters and structures whose values are unknown, including everything inside a structure."""
        self._broken: Broken | None = None
        """The first error of a derived value or a condition."""
        self._fill(tree.declared, ())

    def broken(self) -> list[Broken]:
        """Return the errors of derived values, conditions and constraints, as far as values are known."""
        errors = [] if self._broken is None else [self._broken]
        for index, constraint in enumerate(self._tree.constraints):
            key = ("constraints", index)
            try:
                if self._evaluated(constraint.holds, (), key) is not False:
                    continue
            except Broken as error:
                errors.append(error)
                continue
            values = [f"{name} is {self.point[name]!r}" for name in constraint.names if name in self.point]
            reason = f": {', '.join(values)}" if values else ""
            errors.append(Broken(key, f"{constraint} must hold, but doesn't{reason}"))
        return errors

    def _fill(self, declared: Sequence[Declared], path: tuple[str, ...]) -> None:
        for item in declared:
            here = (*path, *item.path)
            if item.when is not None:
                applies = self._applies(item.when, here)
                if applies is UNKNOWN:
                    self._unknown.add(".".join(here))
                if applies is not True:
                    continue
            holds = item.holds
            if isinstance(holds, Derived):
                self._derive(holds, here)
            elif not isinstance(holds, Structure):
                self._add(self._tree.parameter(here, holds, None))
            else:
                tag = None if holds.tag is None else self._add(self._tree.parameter(here, holds.tag, holds))
                if tag is not UNKNOWN:
                    for inner, inside in holds.groups(tag):
                        self._fill(inside, here + inner)

    def _applies(self, when: Expression, path: tuple[str, ...]) -> Value:
        """Return whether a condition is true; `UNKNOWN` if it depends on unknown values."""
        try:
            return self._evaluated(when.holds, path[:-1], (*path, "when"))
        except Broken as error:
            self._broken = self._broken or error
            return False

    def _add(self, parameter: Parameter) -> Value:
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
                value = self._evaluated(derived.parsed.value, path[:-1], path)
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
        """Return the value of a derived parameter's function; `UNKNOWN` if its params are not known yet."""
        if self._unknown or self._broken is not None:
            return UNKNOWN
        try:
            return derived.computed(nested(self._tree.declared, self.point))
        except RejectedConfiguration as error:
            raise Broken(path, str(error)) from None
        except InvalidKey as error:
            raise error.under(path) from None

    def _evaluated(self, evaluate: Callable[[Read], Value], scope: tuple[str, ...], key: KeyPath) -> Value:
        """Return the value of an expression; `UNKNOWN` if it depends on unknown values.

        Args:
            evaluate: Returns the value, from a function that reads parameters.
            scope: Path of the structure that contains the expression. Names are resolved there first.
            key: Location of the expression, for errors.
        """
        try:
            value = evaluate(lambda name: self._value(self._tree.resolved(name, scope)))
        except _Unknown:
            return UNKNOWN
        except Uncomputable as error:
            raise Broken(key, str(error)) from None
        except InvalidKey as error:
            raise error.under(key) from None
        return ABSENT if value is None else value

    def _value(self, path: tuple[str, ...]) -> Value:
        """Return the value of a parameter; if the path contains `*`, the list of the values of all copies."""
        if "*" not in path:
            name = ".".join(path)
            if name not in self.point and any(name == other or name.startswith(f"{other}.") for other in self._unknown):
                raise _Unknown
            return self.point.get(name, ABSENT)
        star = path.index("*")
        copies = self._value(path[:star])
        if copies is ABSENT:
            return ABSENT
        values: list[Value] = []
        for copy in range(copies):
            inner = (*path[:star], str(copy), *path[star + 1 :])
            value = self._value(inner)
            if value is not ABSENT:
                values += value if "*" in inner else [value]
        return values
