"""Spaces declared in Python: mappings of names to distributions, structures, lists and plain values.

Distributions of Optuna and Ray Tune are converted. They are recognized by their module, so that neither is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpsearch.config.checks import InvalidKey, KeyPath, shown, under
from hpsearch.space.choices import Categorical, Constant, list_advice
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.space.numbers import IntUniform, LogIntUniform, LogUniform, Normal, Uniform
from hpsearch.space.parameter import Declared, ParameterGroup, Structure

# Names become command-line options, columns and TensorBoard tags.
_NAME = re.compile(r"\+{0,2}[^\W\d][\w./-]*")  # + and / as in Hydra: +trainer.lr, model/encoder

_DEEPEST_GROUP = 20

# Keys of a parameter in W&B's notation. Without a check, Python mappings with them would be read as groups.
_GRID = "grid_search"
"""The only key of what `ray.tune.grid_search` returns."""

_WANDB_KEYS = ("value", "values", "distribution", "min", "max", "parameters")


@dataclass(frozen=True)
class When:
    """A conditional parameter, structure or group: it is active only if the condition is true.

    Args:
        condition: An expression over parameters that are declared above it, such as `"optimizer == 'sgd'"`.
        parameter: A distribution, a structure, a list, a plain value, or a mapping of parameters.
    """

    condition: str
    parameter: object


def check_name(name: object, path: KeyPath) -> None:
    """Check the name of a parameter, a group or a branch.

    Raises:
        InvalidKey: The name is not allowed.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidKey(path, "must be named with letters, digits, _, -, / and dots, a letter first, or + for Hydra")


def declare(parameters: object, path: KeyPath, may_be_empty: bool = False) -> tuple[Declared, ...]:
    """Read a group of parameters.

    Args:
        parameters: A mapping of names to distributions, structures, lists or plain values; or a tuple that this
            function returned.
        path: Location of the group, for errors.
        may_be_empty: An empty mapping is allowed.

    Raises:
        InvalidKey: A value cannot be read. Arrays and sets are refused because it is ambiguous whether they are one
            value or a choice, and in which order.
    """
    if parameters == () or _is_declared(parameters):
        return parameters  # type: ignore[return-value]
    if not isinstance(parameters, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to distributions, got {shown(parameters)}")
    if not parameters and not may_be_empty:
        raise InvalidKey(path, "must hold at least one parameter, got none")
    return tuple(_declared(parameters, path, ()))


def declare_block(block: object, path: KeyPath) -> tuple[Declared, ...]:
    """Read the block of a `Repeat`: a group, or one parameter without a name.

    Raises:
        InvalidKey: See `declare`; or the block is conditional.
    """
    if isinstance(block, Mapping) or _is_declared(block):
        return declare(block, path)
    if isinstance(block, When):
        raise InvalidKey(path, "must not be conditional as a whole", "give the repeated block a condition instead")
    return (Declared((), _distribution(block, path)),)


def _is_declared(parameters: object) -> bool:
    return isinstance(parameters, tuple) and bool(parameters) and all(isinstance(item, Declared) for item in parameters)


def _declared(parameters: Mapping[object, object], path: KeyPath, names: tuple[str, ...]) -> Iterator[Declared]:
    if len(names) > _DEEPEST_GROUP:
        raise InvalidKey(path, f"must not be nested deeper than {_DEEPEST_GROUP} groups")
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise InvalidKey(path, f"must have strings as names, got {shown(name)}")
        here, names_here = (*path, name), (*names, name)
        if isinstance(value, When):
            yield _conditional(value, here, names_here)
        elif isinstance(value, Mapping) and set(value) == {_GRID} and isinstance(value[_GRID], list):
            yield Declared(names_here, _distribution(value[_GRID], here))
        elif isinstance(value, Mapping):
            _refuse_wandb(value, here)
            if not value:
                raise InvalidKey(here, "must hold at least one parameter, got none")
            yield from _declared(value, here, names_here)
        else:
            yield Declared(names_here, _distribution(value, here))


def _conditional(when: When, path: KeyPath, names: tuple[str, ...]) -> Declared:
    with under((*path, "when")):
        condition = Expression(when.condition)
    inside = when.parameter
    if isinstance(inside, When):
        raise InvalidKey(path, "must have one condition", "join the two by `and`")
    if isinstance(inside, Mapping):
        return Declared(names, ParameterGroup(declare(inside, path)), condition)
    return Declared(names, _distribution(inside, path), condition)


def _distribution(value: object, path: KeyPath) -> Distribution | Structure:
    if isinstance(value, Distribution | Structure):
        return value
    if (kind := type(value)).__module__ in _CONVERSIONS:
        with under(path):
            return _CONVERSIONS[kind.__module__](kind.__name__, value)
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
    with under(path):
        return Categorical(value) if isinstance(value, list) else Constant(value)


def _of_optuna(kind: str, value: Any) -> Distribution:
    """Convert a distribution of Optuna's."""
    match kind:
        case "FloatDistribution" if value.log:
            return LogUniform(value.low, value.high)
        case "FloatDistribution":
            return Uniform(value.low, value.high, _optunas_step(value))
        case "IntDistribution" if value.log:
            return LogIntUniform(value.low, value.high)
        case "IntDistribution":
            return IntUniform(value.low, value.high, None if value.step == 1 else _optunas_step(value))
        case "CategoricalDistribution":
            return Categorical(list(value.choices))
    raise _unknown("Optuna", kind)


def _optunas_step(value: Any) -> Any:
    """Return the step of a distribution whose values are multiples of it. Optuna counts its steps from `low`."""
    if value.step is None:
        return None
    if not math.isclose(value.low / value.step, round(value.low / value.step), abs_tol=1e-9):
        raise InvalidKey(
            ("step",),
            f"must divide low, as values are multiples of the step; got low={value.low}, step={value.step}, whose "
            "values Optuna counts from low",
            "write the values as a list, or hpsearch.Ordinal([...]), which keeps their order",
        )
    return value.step


def _of_tune(kind: str, value: Any) -> Distribution:
    """Convert a domain of Ray Tune's. The upper bound of its integers is exclusive, unless they have a step above 1."""
    sampler, step = value.sampler, None
    if type(sampler).__name__ == "Quantized":
        sampler, step = sampler.get_sampler(), sampler.q
    match kind, type(sampler).__name__.lstrip("_"):
        case "Float", "Uniform":
            return Uniform(value.lower, value.upper, step)
        case "Float", "LogUniform":
            return LogUniform(value.lower, value.upper, step)
        case "Float", "Normal":
            return Normal(sampler.mean, sampler.sd, step)
        case "Integer", "Uniform" | "LogUniform" as scale:
            inside = IntUniform if scale == "Uniform" else LogIntUniform
            is_whole = step in (None, 1)
            return inside(value.lower, value.upper - is_whole, None if is_whole else step)
        case "Categorical", "Uniform" | "Grid":
            return Categorical(list(value.categories))
    raise _unknown("Ray Tune", kind)


def _unknown(tool: str, kind: str) -> InvalidKey:
    return InvalidKey(
        (),
        f"must be a distribution that has a counterpart here, got {tool}'s {kind}",
        "write hpsearch.Uniform, LogUniform, IntUniform, Normal, Categorical, ... or hpsearch.Derived(expression)",
    )


_CONVERSIONS: Mapping[str, Callable[[str, Any], Distribution]] = {
    "optuna.distributions": _of_optuna,
    "ray.tune.search.sample": _of_tune,
}
"""The modules of other tools' distributions, and what converts them."""


def is_wandbs(config: Mapping[Any, object]) -> bool:
    """Return whether a mapping is one parameter in W&B's notation, not a group."""
    return any(key in config for key in _WANDB_KEYS) and not _declares(config)


def is_wandbs_group(config: Mapping[Any, object]) -> bool:
    """Return whether a mapping is a group of parameters in W&B's notation: under the key `parameters`."""
    return isinstance(config.get("parameters"), Mapping) and config.keys() <= {"parameters", "when"}


def _declares(config: Mapping[Any, object]) -> bool:
    """Return whether a mapping is a group: it contains a distribution, also in an inner group."""
    return any(
        _declares(value) if isinstance(value, Mapping) else isinstance(value, Distribution | Structure | When)
        for value in config.values()
    )


def _refuse_wandb(config: Mapping[object, object], path: KeyPath) -> None:
    if is_wandbs(config):
        raise InvalidKey(
            path,
            f"must be a distribution or a group, got W&B's notation ({', '.join(map(str, config))})",
            "write hpsearch.Uniform(min, max), hpsearch.Categorical(values), ...",
        )
