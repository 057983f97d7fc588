"""The `parameters` of a sweep file: W&B's keys and distribution names to our distributions.

What differs from W&B, or goes beyond it:

- A `q` may stand with every range; values are its multiples inside [min, max], integers where it is one.
- `log_int_uniform` draws integers whose logarithm is uniform; W&B's way, `q_log_uniform_values` with `q: 1`,
  gives integers too, but half as much weight to both ends.
- `points` spaces a grid.
- `prior` is a value that is believed to be good, also where the bounds are exponents.
- `inv_log_uniform_values` is `log_uniform_values` (a logarithm is uniform when its negative is), and
  `inv_log_uniform` is `log_uniform` with the exponents negated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpsearch.checks import InvalidKey, KeyPath, Mistakes, nearest, number, shown
from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Parameter,
    Space,
    Uniform,
)
from hpsearch.sweep.reader import Table
from hpsearch.sweep.wandb import REFUSED_DISTRIBUTIONS

__all__ = ["PARAMETER_FORMS", "RANGE_BOUNDS", "is_whole_range", "read_parameters"]

RANGE_BOUNDS = ("min", "max", "q")
"""Keys whose numbers, where no distribution is named, say whether a range is one of integers or of floats."""

_DEEPEST_GROUP = 15


def read_parameters(value: object, path: KeyPath) -> Space:
    """Read the section `parameters`.

    Raises:
        InvalidKey: A parameter is wrong.
    """
    mistakes = Mistakes()
    leaves = tuple(_leaves(value, path, (), mistakes))
    mistakes.refuse()
    try:
        return Space(leaves)
    except InvalidKey as error:
        raise error.under(path) from None


def _leaves(value: object, path: KeyPath, names: tuple[str, ...], mistakes: Mistakes) -> Iterator[Parameter]:
    if not isinstance(value, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to parameters, got {shown(value)}")
    if not value:
        raise InvalidKey(path, "must hold at least one parameter, got none")
    if len(names) > _DEEPEST_GROUP:
        raise InvalidKey(path, f"must not be nested deeper than {_DEEPEST_GROUP} groups")
    for name, given in value.items():
        if not isinstance(name, str):
            raise InvalidKey(path, f"must have strings as keys, got {shown(name)}")
        here = (*path, name)
        with mistakes.kept():
            if isinstance(given, Mapping) and "parameters" in given:
                Table(given, here, ("parameters",)).mistakes.refuse()
                yield from _leaves(given["parameters"], (*here, "parameters"), (*names, name), mistakes)
            else:
                yield Parameter((*names, name), _read_distribution(given, here))


def _read_distribution(value: object, path: KeyPath) -> Distribution:
    if not isinstance(value, Mapping):
        kind = "values" if isinstance(value, list) else "value"
        raise InvalidKey(
            path, f"must be a mapping, such as {{{kind}: ...}} or {{min: ..., max: ...}}, got {shown(value)}"
        )
    table = Table(value, path, _PARAMETER_KEYS, renamed={"step": "q"})
    table.mistakes.refuse()
    name = table.get("distribution", _form_name) if table.has("distribution") else _inferred(table, value)
    form = _FORMS[name]
    unused = next((key for key in value if key not in (*form.keys, "distribution")), None)
    if unused is not None:
        advice = "mu says where good values are believed to be" if unused == "prior" and "mu" in form.keys else ""
        raise InvalidKey((*path, unused), f"has no meaning for {name}, which takes {', '.join(form.keys)}", advice)
    for key, example in form.required.items():
        table.require(key, f"{key}: {example}")
    keys = [key for key in form.keys if key in form.required or table.has(key)]
    return table.build(form.make, **{"step" if key == "q" else key: value[key] for key in keys})


def _form_name(value: object, path: KeyPath) -> str:
    if isinstance(value, str) and value in _FORMS:
        return value
    text = value if isinstance(value, str) else ""
    advice = REFUSED_DISTRIBUTIONS.get(text) or nearest(str(value)[:80], _FORMS)
    raise InvalidKey(path, f"must be a known distribution, got {shown(value)}", advice)


def _inferred(table: Table, value: Mapping[str, object]) -> str:
    """Name the distribution as W&B infers it from the keys and the types of min and max."""
    if "value" in value:
        return "constant"
    if "values" in value:
        return "categorical"
    if "min" in value or "max" in value:
        return "int_uniform" if is_whole_range(value) else "uniform"
    if "mu" in value or "sigma" in value:
        problem = "is required beside mu and sigma"
        raise InvalidKey((*table.path, "distribution"), problem, add=(table.path, "distribution: normal"))
    raise InvalidKey(table.path, "must have value, values, min and max, or a distribution, got none of them")


def is_whole_range(value: Mapping[str, object]) -> bool:
    """Say whether a range is one of integers by how its numbers are written, as in W&B."""
    bounds = [value[key] for key in RANGE_BOUNDS if key in value]
    return all(isinstance(bound, int) for bound in bounds)


def _from_exponents(name: str, inverse: bool = False, **given: Any) -> LogUniform:
    """Build what W&B bounds by exponents of e; `inverse` negates them."""
    low, high = (number(given.pop(key), (key,)) for key in ("min", "max"))
    advice = f"min and max of {name} are exponents of e; {name}_values takes the bounds themselves"
    if high <= low:
        raise InvalidKey(("max",), f"must be greater than min ({low}), got {high}", advice)
    for key, exponent in (("max", high), ("min", low)):
        if not -700 <= exponent <= 700:
            raise InvalidKey((key,), f"must be an exponent between -700 and 700, got {exponent}", advice)
    if inverse:
        low, high = -high, -low
    try:
        return LogUniform(math.exp(low), math.exp(high), **given)
    except InvalidKey as error:
        if error.key[:1] != ("prior",):
            raise
        advice = f"min and max of {name} are exponents of e; the prior is a value"
        raise InvalidKey(error.key, error.problem, advice) from None


@dataclass(frozen=True)
class _Form:
    """What one distribution name takes, and what it makes of it."""

    make: Callable[..., Distribution]
    required: Mapping[str, str]
    """Keys that must be given, and what could stand there."""
    optional: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.required, *self.optional)


def _range(make: Callable[..., Distribution], low: str = "0", high: str = "1") -> _Form:
    return _Form(make, {"min": low, "max": high}, ("q", "points", "prior"))


def _bell(make: Callable[..., Distribution]) -> _Form:
    return _Form(make, {}, ("mu", "sigma", "q", "points"))


_CHOICE = _Form(Categorical, {"values": "[1, 2]"}, ("probabilities", "prior"))

# W&B's quantized distributions round to integers unless told otherwise.
_FORMS: Mapping[str, _Form] = {
    "constant": _Form(Constant, {"value": "1"}),
    "categorical": _CHOICE,
    "categorical_w_probabilities": _CHOICE,
    "uniform": _range(Uniform),
    "q_uniform": _range(partial(Uniform, step=1)),
    "int_uniform": _range(IntUniform),
    "log_int_uniform": _range(LogIntUniform, "1", "100"),
    "log_uniform": _range(partial(_from_exponents, "log_uniform")),
    "q_log_uniform": _range(partial(_from_exponents, "q_log_uniform", step=1)),
    "inv_log_uniform": _range(partial(_from_exponents, "inv_log_uniform", inverse=True)),
    "log_uniform_values": _range(LogUniform, "0.001"),
    "q_log_uniform_values": _range(partial(LogUniform, step=1), "1", "100"),
    "inv_log_uniform_values": _range(LogUniform, "0.001"),
    "normal": _bell(Normal),
    "q_normal": _bell(partial(Normal, step=1)),
    "log_normal": _bell(LogNormal),
    "q_log_normal": _bell(partial(LogNormal, step=1)),
}

PARAMETER_FORMS: Mapping[str, tuple[str, ...]] = {name: form.keys for name, form in _FORMS.items()}
"""The names that `distribution` may have, and the keys that each takes."""

_PARAMETER_KEYS = (
    "value",
    "values",
    "probabilities",
    "distribution",
    "min",
    "max",
    "mu",
    "sigma",
    "q",
    "points",
    "prior",
    "parameters",
)
