"""Spaces as Python writes them: mappings of names to distributions, structures, lists and plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpsearch.config.checks import InvalidKey, KeyPath, shown
from hpsearch.space.choices import Categorical, Constant, list_advice
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.space.parameter import Declared, Group, Structure

__all__ = ["When", "block", "check_name", "declared", "is_wandbs"]

# Names become command-line options, columns and TensorBoard tags.
_NAME = re.compile(r"\+{0,2}[^\W\d][\w./-]*")  # + and / as Hydra has them: +trainer.lr, model/encoder

_DEEPEST_GROUP = 20

# Keys of a parameter in W&B's notation: in Python they would pass for the names of a group.
_WANDB_KEYS = ("value", "values", "distribution", "min", "max", "parameters")


@dataclass(frozen=True)
class When:
    """A parameter, structure or group that applies where a condition is true, and else is no part of a point.

    Args:
        condition: An expression over parameters that stand above it, such as `"optimizer == 'sgd'"`.
        parameter: What applies then: whatever may stand in a space.
    """

    condition: str
    parameter: object


def check_name(name: object, path: KeyPath) -> None:
    """Check the name of a parameter, a group or a branch.

    Raises:
        InvalidKey: It can't be one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidKey(path, "must be named with letters, digits, _, -, / and dots, a letter first, or + for Hydra")


def declared(given: object, path: KeyPath, may_be_empty: bool = False) -> tuple[Declared, ...]:
    """Read a group of parameters.

    Args:
        given: Names to what they are; or what this gave before.
        path: Where it stands, for errors.
        may_be_empty: It needn't hold anything.

    Raises:
        InvalidKey: Something is wrong, such as an array or a set: whether it is one value or a choice, and in which
            order, it doesn't say.
    """
    if given == () or _is_declared(given):
        return given  # type: ignore[return-value]
    if not isinstance(given, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to distributions, got {shown(given)}")
    if not given and not may_be_empty:
        raise InvalidKey(path, "must hold at least one parameter, got none")
    return tuple(_declared(given, path, ()))


def block(given: object, path: KeyPath) -> tuple[Declared, ...]:
    """Read what is copied: a group, or one parameter without a name.

    Raises:
        InvalidKey: Something is wrong.
    """
    if isinstance(given, Mapping) or _is_declared(given):
        return declared(given, path)
    if isinstance(given, When):
        raise InvalidKey(path, "must not be conditional as a whole", "give the repeated block a condition instead")
    return (Declared((), _held(given, path)),)


def _is_declared(given: object) -> bool:
    return isinstance(given, tuple) and bool(given) and all(isinstance(one, Declared) for one in given)


def _declared(given: Mapping[object, object], path: KeyPath, names: tuple[str, ...]) -> Iterator[Declared]:
    if len(names) > _DEEPEST_GROUP:
        raise InvalidKey(path, f"must not be nested deeper than {_DEEPEST_GROUP} groups")
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidKey(path, f"must have strings as names, got {shown(name)}")
        here, own = (*path, name), (*names, name)
        if isinstance(value, When):
            yield _conditional(value, here, own)
        elif isinstance(value, Mapping):
            _refuse_wandb(value, here)
            if not value:
                raise InvalidKey(here, "must hold at least one parameter, got none")
            yield from _declared(value, here, own)
        else:
            yield Declared(own, _held(value, here))


def _conditional(given: When, path: KeyPath, names: tuple[str, ...]) -> Declared:
    try:
        condition = Expression(given.condition)
    except InvalidKey as error:
        raise error.under((*path, "when")) from None
    inside = given.parameter
    if isinstance(inside, When):
        raise InvalidKey(path, "must have one condition", "join the two by `and`")
    if isinstance(inside, Mapping):
        return Declared(names, Group(declared(inside, path)), condition)
    return Declared(names, _held(inside, path), condition)


def _held(value: object, path: KeyPath) -> Distribution | Structure:
    if isinstance(value, Distribution | Structure):
        return value
    if isinstance(value, tuple):
        first, last = (repr(value[0]), repr(value[-1])) if value else ("0.0", "1.0")
        raise InvalidKey(
            path,
            f"must be a distribution, a list of choices or a plain value, got the tuple {repr(value)[:60]}",
            f"write hpsearch.Uniform({first}, {last}) for a range, a list for a choice, hpsearch.Constant for a value",
        )
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | list):
        problem = f"must be a distribution, a list of choices or a plain value, got a {type(value).__name__}"
        raise InvalidKey(path, problem, list_advice(value))
    try:
        return Categorical(value) if isinstance(value, list) else Constant(value)
    except InvalidKey as error:
        raise error.under(path) from None


def is_wandbs(given: Mapping[Any, object]) -> bool:
    """Say whether a mapping is one parameter in W&B's notation, and no group."""
    held = any(isinstance(value, Distribution | Structure | When) for value in given.values())
    return not held and any(key in given for key in _WANDB_KEYS)


def _refuse_wandb(given: Mapping[object, object], path: KeyPath) -> None:
    if is_wandbs(given):
        raise InvalidKey(
            path,
            f"must be a distribution or a group, got W&B's notation ({', '.join(map(str, given))})",
            "write hpsearch.Uniform(min, max), hpsearch.Categorical(values), ...",
        )
