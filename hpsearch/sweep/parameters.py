"""Reading of the section `parameters` of a sweep file: groups, conditions, structures; and of `constraints`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never, TypeGuard, cast, overload

from hpsearch.config.checks import InvalidKey, KeyPath, Mistakes, at_least, integer, nearest, shown
from hpsearch.space import Categorical, Cell, Chain, Choice, Distribution, Repeat, Space
from hpsearch.space.declarations import When, declare, is_wandbs, is_wandbs_group
from hpsearch.space.expressions import Expression
from hpsearch.space.parameter import Declared, Structure
from hpsearch.sweep.distributions import read_distribution
from hpsearch.sweep.reader import KeyReader, listed


def read_parameters(value: object, path: KeyPath, constraints: tuple[Expression, ...] = ()) -> Space:
    """Read the section `parameters`.

    Raises:
        InvalidKey: A parameter or a constraint is wrong.
    """
    return space_of_declared(declare(_group(value, path), path), constraints, path)


def space_of(parameters: object, constraints: object = ()) -> Space:
    """Return the space of a Python mapping, in which parameters may also be in W&B's notation.

    Args:
        parameters: The same as for `Space.from_parameters`, or parameters such as `{"min": 0, "max": 1}`.
        constraints: A list of expressions, or a single one.

    Raises:
        InvalidKey: A parameter or a constraint is wrong.
    """
    path: KeyPath = ("parameters",)
    expressions = read_constraints(constraints, ("constraints",))
    return space_of_declared(declare(_in_python(parameters, path), path), expressions, path)


class SpaceField:
    """A dataclass field of type `Space` that can be set to a mapping, which `space_of` converts."""

    @overload
    def __get__(self, holder: None, owner: type) -> Never: ...
    @overload
    def __get__(self, holder: object, owner: type) -> Space: ...
    def __get__(self, holder: object | None, owner: type) -> Space:
        if holder is None:
            raise AttributeError  # tells the dataclass that the field has no default
        return cast("Space", vars(holder)[self._name])

    def __set__(self, holder: object, value: Space | Mapping[str, Any]) -> None:
        vars(holder)[self._name] = space_of(value) if isinstance(value, Mapping) else value

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name


def read_declared(names: tuple[str, ...], config: object, path: KeyPath) -> tuple[Declared, ...]:
    """Read one parameter; the parameters of a group without a condition are several.

    Args:
        names: Names of the groups that contain it, then its own.
        config: The parameter in a sweep file.
        path: The key of the outermost group.

    Raises:
        InvalidKey: The parameter is wrong.
    """
    *groups, name = names
    declared = _group({name: config}, (*path, *groups))
    for group in reversed(groups):
        declared = {group: declared}
    return declare(declared, path)


def space_of_declared(declared: tuple[Declared, ...], constraints: tuple[Expression, ...], path: KeyPath) -> Space:
    """Return the space of declared parameters.

    Raises:
        InvalidKey: Names clash, or an expression is wrong.
    """
    try:
        return Space(declared, constraints)
    except InvalidKey as error:
        raise error if error.key[:1] == ("constraints",) else error.under(path) from None


def _in_python(parameters: object, path: KeyPath) -> dict[str, Any]:
    """Return parameters with those in W&B's notation converted to distributions.

    A mapping is in that notation if it has one of its keys and contains no distribution and no structure, or if it is
    a group under the key `parameters`.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to distributions, got {shown(parameters)}")
    converted: dict[str, Any] = {}
    for name, config in parameters.items():
        here = (*path, name)
        if not isinstance(config, Mapping):
            converted[name] = config
        else:
            converted[name] = (
                _parameter_or_group(config, here, _in_python)
                if is_wandbs(config) or is_wandbs_group(config)
                else _in_python(config, here)
            )
    return converted


def read_constraints(value: object, path: KeyPath) -> tuple[Expression, ...]:
    """Read the section `constraints`: expressions that must be true for every configuration.

    Raises:
        InvalidKey: A value is not an expression.
    """
    texts = [value] if isinstance(value, str) else listed(value, path)
    return tuple(_expression(text, (*path, index)) for index, text in enumerate(texts))


def _group(value: object, path: KeyPath, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the parameters of a group of a sweep file, as `declare` takes them."""
    if may_be_empty and value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to parameters, got {shown(value)}")
    if not value and not may_be_empty:
        raise InvalidKey(path, "must hold at least one parameter, got none")
    parameters, mistakes = {}, Mistakes()
    for name, config in value.items():
        with mistakes.collect():
            parameters[name] = _parameter_or_group(config, (*path, name), _group)
    mistakes.raise_collected()
    return parameters


def _parameter_or_group(config: object, path: KeyPath, read_group: Callable[[object, KeyPath], object]) -> object:
    if _has(config, "parameters"):
        KeyReader(config, path, ("parameters", "when")).mistakes.raise_collected()
        inside = read_group(config["parameters"], (*path, "parameters"))
    else:
        inside = _read_parameter(config, path)
    return When(_expression(config["when"], (*path, "when")).text, inside) if _has(config, "when") else inside


def _has(config: object, key: str) -> TypeGuard[Mapping[str, object]]:
    return isinstance(config, Mapping) and config.get(key) is not None


def _expression(value: object, path: KeyPath) -> Expression:
    try:
        return Expression(value if isinstance(value, str) else str(value) if isinstance(value, bool) else "")
    except InvalidKey as error:
        problem = error.problem if isinstance(value, str) else f"must be an expression in quotes, got {shown(value)}"
        raise InvalidKey(path, problem, error.advice) from None


def _read_parameter(config: object, path: KeyPath) -> Distribution | Structure:
    """Read a parameter or a structure, without its condition."""
    kinds = [kind for kind in _STRUCTURES if _has(config, kind)]
    if not kinds:
        return read_distribution(config, path)
    assert isinstance(config, Mapping)
    kind = kinds[0]
    form = _STRUCTURES[kind]
    unused = next((key for key in config if key not in (kind, "when", *form.keys)), None)
    if unused is not None:
        keys_text = f", which takes {', '.join(form.keys)}" if form.keys else ""
        raise InvalidKey(
            (*path, unused), f"has no meaning with {kind}{keys_text}", nearest(str(unused), form.keys or [kind])
        )
    inside = form.read(config[kind], (*path, kind))
    table = KeyReader(config, path, (kind, "when", *form.keys))
    for key, example in form.required.items():
        table.require(key, f"{key}: {example}")
    keys = {key: config[key] for key in form.keys if table.has(key)}
    if "length" not in keys:
        return table.build(form.make, inside, **keys)
    if len(keys) > 1:
        raise InvalidKey((*path, "length"), "must not be given with min or max", "remove length, or min and max")
    length = at_least(1, integer, keys["length"], (*path, "length"))
    try:
        return form.make(inside, min=length, max=length)
    except InvalidKey as error:
        raise InvalidKey((*path, "length"), error.problem) from None


def _branches(value: object, path: KeyPath) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        advice = f"write values: {list(value)}, of values without parameters" if isinstance(value, list) else ""
        raise InvalidKey(path, f"must be a mapping of branches to their parameters, got {shown(value)}", advice)
    if not value:
        raise InvalidKey(path, "must hold at least one branch, got none")
    branches, mistakes = {}, Mistakes()
    for name, inside in value.items():
        with mistakes.collect():
            branches[name] = _group(inside, (*path, name), may_be_empty=True)
    mistakes.raise_collected()
    return branches


def _operations(value: object, path: KeyPath) -> Categorical | Choice:
    """Read a set of operations: a list, or a mapping of names to their parameters."""
    try:
        return Choice(_branches(value, path)) if isinstance(value, Mapping) else Categorical(listed(value, path))
    except InvalidKey as error:
        raise error if error.key[: len(path)] == path else error.under(path) from None


def _block(value: object, path: KeyPath) -> object:
    """Read a repeated block: one parameter, or a group under `parameters`."""
    if _has(value, "when"):
        raise InvalidKey((*path, "when"), "must not be given in a block", "put it next to repeat")
    if _has(value, "parameters"):
        KeyReader(value, path, ("parameters",)).mistakes.raise_collected()
        return _group(value["parameters"], (*path, "parameters"))
    if _is_bare_group(value):
        names = ", ".join(map(str, value))
        raise InvalidKey(path, "must be one parameter, or hold a group", f"put {names} under a key parameters")
    return _read_parameter(value, path)


def _is_bare_group(value: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether a value is a group without the key `parameters`."""
    if not isinstance(value, Mapping) or any(_has(value, kind) for kind in _STRUCTURES):
        return False
    return bool(value) and all(isinstance(inside, Mapping) for inside in value.values())


@dataclass(frozen=True)
class _StructureForm:
    """The other keys of a structure, and how to read and build it."""

    make: Callable[..., Structure]
    read: Callable[[object, KeyPath], Any]
    keys: tuple[str, ...] = ()
    required: Mapping[str, str] = field(default_factory=dict)


_STRUCTURES: Mapping[str, _StructureForm] = {
    Choice.kind: _StructureForm(Choice, _branches),
    Repeat.kind: _StructureForm(Repeat, _block, ("min", "max", "length")),
    Chain.kind: _StructureForm(Chain, _operations, ("min", "max", "length")),
    Cell.kind: _StructureForm(Cell, _operations, ("nodes", "each", "inputs"), {"nodes": "4"}),
}
"""Structures by their key."""

STRUCTURE_FORMS: Mapping[str, tuple[str, ...]] = {kind: form.keys for kind, form in _STRUCTURES.items()}
"""The keys of structures, with the other keys of each."""
