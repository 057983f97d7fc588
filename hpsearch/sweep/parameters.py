"""The `parameters` of a sweep file: W&B's keys and distribution names to our distributions.

What differs from W&B, or goes beyond it:

- A `q` may stand with every range; values are its multiples inside [min, max], integers where it is one.
- `log_int_uniform` draws integers whose logarithm is uniform; W&B's way, `q_log_uniform_values` with `q: 1`,
  gives integers too, but half as much weight to both ends.
- `points` spaces a grid.
- `inv_log_uniform_values` is `log_uniform_values` (a logarithm is uniform when its negative is), and
  `inv_log_uniform` is `log_uniform` with the exponents negated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hpsearch.checks import InvalidKey, KeyPath, Mistakes, integer, number, shown
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
from hpsearch.sweep.reader import Kind, Table, choice, listed, raw
from hpsearch.sweep.wandb import REFUSED_DISTRIBUTIONS

__all__ = ["PARAMETER_FORMS", "RANGE_BOUNDS", "is_whole_range", "read_parameters"]

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
    "parameters",
)
RANGE_BOUNDS = ("min", "max", "q")
"""Keys whose numbers, where no distribution is named, say whether a range is one of integers or of floats."""

_RENAMED = {"step": "q"}
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
    table = Table(value, path, _PARAMETER_KEYS, renamed=_RENAMED)
    table.mistakes.refuse()
    if table.has("distribution"):
        name = table.get("distribution", choice(tuple(_FORMS), REFUSED_DISTRIBUTIONS))
    else:
        name = _inferred(table, value)
    form = _FORMS[name]
    unused = next((key for key in value if key not in (*form.keys, "distribution")), None)
    if unused is not None:
        raise InvalidKey((*path, unused), f"has no meaning for {name}, which takes {', '.join(form.keys) or 'nothing'}")
    return form.read(table)


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


def _points(table: Table) -> int | None:
    return table.get_or("points", integer, None)


def _step(table: Table, quantized: bool, kind: Kind[float]) -> float | None:
    # W&B's quantized distributions round to integers unless told otherwise.
    return table.get_or("q", kind, 1 if quantized else None)


def _any_number(value: object, path: KeyPath) -> float:
    """Take a number, and leave an integer one: an integer q gives integers."""
    return integer(value, path) if isinstance(value, int) else number(value, path)


def _bounds(table: Table, kind: Kind[float]) -> tuple[float, float]:
    return table.get("min", kind, "min: 0"), table.get("max", kind, "max: 1")


def _uniform(table: Table, quantized: bool = False) -> Distribution:
    low, high = _bounds(table, number)
    return table.build(Uniform, low, high, step=_step(table, quantized, _any_number), points=_points(table))


def _log_uniform_values(table: Table, quantized: bool = False) -> Distribution:
    low, high = _bounds(table, number)
    return table.build(LogUniform, low, high, step=_step(table, quantized, _any_number), points=_points(table))


def _log_uniform(table: Table, quantized: bool = False, inverse: bool = False) -> Distribution:
    low, high = _bounds(table, number)
    name = table.get("distribution", choice(tuple(_FORMS)))
    advice = f"min and max of {name} are exponents of e; {name}_values takes the bounds themselves"
    if high <= low:
        raise InvalidKey((*table.path, "max"), f"must be greater than min ({low}), got {high}", advice)
    if inverse:
        low, high = -high, -low
    for key, exponent in (("max", high), ("min", low)):
        if not -700 <= exponent <= 700:
            raise InvalidKey((*table.path, key), f"must be an exponent between -700 and 700, got {exponent}", advice)
    return table.build(
        LogUniform,
        math.exp(low),
        math.exp(high),
        step=_step(table, quantized, _any_number),
        points=_points(table),
    )


def _int_uniform(table: Table) -> Distribution:
    low, high = table.get("min", integer, "min: 0"), table.get("max", integer, "max: 1")
    return table.build(IntUniform, low, high, step=table.get_or("q", integer, None), points=_points(table))


def _log_int_uniform(table: Table) -> Distribution:
    low, high = table.get("min", integer, "min: 1"), table.get("max", integer, "max: 100")
    return table.build(LogIntUniform, low, high, step=table.get_or("q", integer, None), points=_points(table))


def _normal(table: Table, quantized: bool = False) -> Distribution:
    mu, sigma = table.get_or("mu", number, 0.0), table.get_or("sigma", number, 1.0)
    return table.build(Normal, mu, sigma, step=_step(table, quantized, _any_number), points=_points(table))


def _log_normal(table: Table, quantized: bool = False) -> Distribution:
    mu, sigma = table.get_or("mu", number, 0.0), table.get_or("sigma", number, 1.0)
    return table.build(LogNormal, mu, sigma, step=_step(table, quantized, _any_number), points=_points(table))


def _categorical(table: Table) -> Distribution:
    values = table.get("values", listed, "values: [1, 2]")
    shares = table.get_or("probabilities", _probabilities, None)
    return table.build(Categorical, values, shares)


def _probabilities(value: object, path: KeyPath) -> list[float]:
    return [number(item, (*path, place)) for place, item in enumerate(listed(value, path))]


def _constant(table: Table) -> Distribution:
    return table.build(Constant, table.get("value", raw, "value: 1"))


@dataclass(frozen=True)
class _Form:
    """What one distribution name takes, and how it is read."""

    read: Callable[[Table], Distribution]
    keys: tuple[str, ...]


_RANGE = ("min", "max", "q", "points")
_BELL = ("mu", "sigma", "q", "points")

_FORMS: Mapping[str, _Form] = {
    "constant": _Form(_constant, ("value",)),
    "categorical": _Form(_categorical, ("values", "probabilities")),
    "categorical_w_probabilities": _Form(_categorical, ("values", "probabilities")),
    "uniform": _Form(_uniform, _RANGE),
    "q_uniform": _Form(lambda table: _uniform(table, quantized=True), _RANGE),
    "int_uniform": _Form(_int_uniform, _RANGE),
    "log_int_uniform": _Form(_log_int_uniform, _RANGE),
    "log_uniform": _Form(_log_uniform, _RANGE),
    "q_log_uniform": _Form(lambda table: _log_uniform(table, quantized=True), _RANGE),
    "inv_log_uniform": _Form(lambda table: _log_uniform(table, inverse=True), _RANGE),
    "log_uniform_values": _Form(_log_uniform_values, _RANGE),
    "q_log_uniform_values": _Form(lambda table: _log_uniform_values(table, quantized=True), _RANGE),
    "inv_log_uniform_values": _Form(_log_uniform_values, _RANGE),
    "normal": _Form(_normal, _BELL),
    "q_normal": _Form(lambda table: _normal(table, quantized=True), _BELL),
    "log_normal": _Form(_log_normal, _BELL),
    "q_log_normal": _Form(lambda table: _log_normal(table, quantized=True), _BELL),
}

PARAMETER_FORMS: Mapping[str, tuple[str, ...]] = {name: form.keys for name, form in _FORMS.items()}
"""The names that `distribution` may have, and the keys that each takes."""
