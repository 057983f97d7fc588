"""Reading of a single parameter in a sweep file, with W&B's keys and distribution names.

Differences from W&B, and extensions:

- `q` is allowed with every range. Values are the multiples of `q` in [min, max], integers if `q` is an integer. If the
  bounds are exponents, the first and last multiples are the nearest to e^min and e^max, as in W&B.
- `log_int_uniform` samples log-uniform integers. W&B's `q_log_uniform_values` with `q: 1` also samples integers, but
  both ends have half the weight.
- `points` is the number of grid points of a range.
- `prior` is a value that is believed to be good, also if the bounds are exponents.
- `default` is the value of earlier trials, of searches that didn't have the parameter.
- `ordered` means that neighbours in the list of values are similar.
- `or: [0]` adds the value 0 to a log-uniform range.
- `derived` is an expression over other parameters.
- `inv_log_uniform_values` is `log_uniform_values` (a logarithm is uniform if its negative is), and `inv_log_uniform` is
  `log_uniform` with negated exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpsearch.config.checks import InvalidKey, KeyPath, nearest, number, shown
from hpsearch.space import (
    Categorical,
    Constant,
    Derived,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Ordinal,
    Uniform,
    ZeroOrLogUniform,
)
from hpsearch.sweep.reader import KeyReader
from hpsearch.sweep.wandb import REFUSED_DISTRIBUTIONS

RANGE_BOUNDS = ("min", "max", "q")
"""Keys whose types decide whether a range without `distribution` has integers or floats."""


def read_distribution(value: object, path: KeyPath) -> Distribution:
    """Read a parameter, without its condition.

    Raises:
        InvalidKey: A key or value is wrong.
    """
    if not isinstance(value, Mapping):
        kind = "values" if isinstance(value, list) else "value"
        raise InvalidKey(
            path, f"must be a mapping, such as {{{kind}: ...}} or {{min: ..., max: ...}}, got {shown(value)}"
        )
    table = KeyReader(
        value, path, _PARAMETER_KEYS, _hints(value), renamed={argument: key for key, argument in _RENAMED.items()}
    )
    if value.get("distribution") in [*REFUSED_DISTRIBUTIONS]:  # first: otherwise its keys would be the error
        table.get("distribution", _form_name)
    table.mistakes.raise_collected()
    name = table.get("distribution", _form_name) if table.has("distribution") else _inferred(table, value)
    form = _FORMS[name]
    unused = next((key for key in value if key not in (*form.keys, "distribution", "when")), None)
    if unused is not None:
        advice = "mu is where good values are believed to be" if unused == "prior" and "mu" in form.keys else ""
        raise InvalidKey((*path, unused), f"has no meaning for {name}, which takes {', '.join(form.keys)}", advice)
    for key, example in form.required.items():
        table.require(key, f"{key}: {example}")
    keys = [key for key in form.keys if key in form.required or table.has(key)]
    return table.build(form.make, **{_RENAMED.get(key, key): value[key] for key in keys})


def written_distribution(distribution: Distribution) -> dict[str, Any]:
    """Return a parameter in the notation of a sweep file; `read_distribution` reads it."""
    names = {argument: key for key, argument in _RENAMED.items()}
    config = {names.get(argument, argument): value for argument, value in distribution.to_json().items()}
    kind = config.pop("distribution")
    if kind == Ordinal.kind:
        return {"distribution": Categorical.kind, **config, "ordered": True}
    if kind == ZeroOrLogUniform.kind:
        config["or"] = [0]
    return {"distribution": "log_uniform_values" if "log_uniform" in kind else kind, **config}


def _hints(value: Mapping[object, object]) -> dict[str, str]:
    """Return advice for keys of other libraries, and for a group without the key `parameters`."""
    hints = {"step": "q is the step here, and the values are its multiples"}
    for key, content in value.items():
        if isinstance(key, str) and isinstance(content, Mapping):
            near = nearest(key, _PARAMETER_KEYS)
            inside = f"a group has its parameters under parameters: {{parameters: {{{key}: ...}}}}"
            hints[key] = near if near.startswith("did you mean") else inside
    return hints


_RENAMED = {"q": "step", "derived": "expression", "or": "others"}
"""Keys to arguments of the distributions."""


def _form_name(value: object, path: KeyPath) -> str:
    if isinstance(value, str) and value in _FORMS:
        return value
    text = value if isinstance(value, str) else ""
    advice = REFUSED_DISTRIBUTIONS.get(text) or nearest(str(value)[:80], _FORMS)
    raise InvalidKey(path, f"must be a known distribution, got {shown(value)}", advice)


def _inferred(table: KeyReader, value: Mapping[str, object]) -> str:
    """Return the distribution that W&B infers from the keys and the types of min and max."""
    if "derived" in value:
        return "derived"
    if "value" in value:
        return "constant"
    if "values" in value:
        return "categorical"
    if "min" in value or "max" in value:
        return "int_uniform" if is_whole_range(value) else "uniform"
    if "mu" in value or "sigma" in value:
        problem = "is required with mu and sigma"
        raise InvalidKey((*table.path, "distribution"), problem, add=(table.path, "distribution: normal"))
    raise InvalidKey(table.path, "must have value, values, min and max, or a distribution, got none of them")


def is_whole_range(value: Mapping[str, object]) -> bool:
    """Return whether all bounds of a range are integers; W&B then infers a range of integers."""
    bounds = [value[key] for key in RANGE_BOUNDS if key in value]
    return all(isinstance(bound, int) for bound in bounds)


def _from_exponents(name: str, inverse: bool = False, **arguments: Any) -> LogUniform:
    """Return the distribution whose bounds are exponents of e in W&B's notation; `inverse` negates them."""
    low, high = (number(arguments.pop(key), (key,)) for key in ("min", "max"))
    advice = f"min and max of {name} are exponents of e; {name}_values takes the bounds themselves"
    if high <= low:
        raise InvalidKey(("max",), f"must be greater than min ({low}), got {high}", advice)
    for key, exponent in (("max", high), ("min", low)):
        if not -700 <= exponent <= 700:
            raise InvalidKey((key,), f"must be an exponent between -700 and 700, got {exponent}", advice)
    if inverse:
        low, high = -high, -low
    low, high = _with_nearest_multiples(math.exp(low), math.exp(high), arguments.get("step"))
    try:
        return LogUniform(low, high, **arguments)
    except InvalidKey as error:
        if error.key[:1] not in (("prior",), ("default",)):
            raise
        advice = f"min and max of {name} are exponents of e; the {error.key[0]} is a value"
        raise InvalidKey(error.key, error.problem, advice) from None


def _log_uniform(others: object = None, **arguments: Any) -> LogUniform | ZeroOrLogUniform:
    """Return a log-uniform distribution; with the list [0], also of 0."""
    if others is None:
        return LogUniform(**arguments)
    if not isinstance(others, list) or len(others) != 1 or isinstance(others[0], bool) or others[0] != 0:
        raise InvalidKey(("or",), f"must be [0], got {shown(others)}", "other values are a choice: values: [...]")
    if arguments.pop("step", None) is not None:
        raise InvalidKey(("q",), "must not be given with or: [0]", "remove one of them")
    return ZeroOrLogUniform(**arguments)


def _with_nearest_multiples(low: float, high: float, step: object) -> tuple[float, float]:
    """Widen a range to the multiples of a step that are nearest to its ends, as W&B does.

    Exponents are rounded logarithms: e^5.545 is 255.96, and the multiples of 8 should include 256.
    """
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high:
        return low, high
    first, last = step * round(low / step), step * round(high / step)
    return (min(low, first) if first > 0 else low), max(high, last)


@dataclass(frozen=True)
class _Form:
    """The keys of a distribution name, and how to build the distribution."""

    make: Callable[..., Distribution]
    required: Mapping[str, str]
    """Required keys, with examples of values."""
    optional: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.required, *self.optional)


def _range(make: Callable[..., Distribution], low: str = "0", high: str = "1") -> _Form:
    return _Form(make, {"min": low, "max": high}, ("q", "points", "prior", "default"))


def _bell(make: Callable[..., Distribution]) -> _Form:
    return _Form(make, {}, ("mu", "sigma", "q", "points", "default"))


def _listed(values: object, ordered: object = False, **arguments: Any) -> Categorical:
    if not isinstance(ordered, bool):
        raise InvalidKey(("ordered",), f"must be true or false, got {shown(ordered)}")
    return (Ordinal if ordered else Categorical)(values, **arguments)  # type: ignore[arg-type]


_CHOICE = _Form(_listed, {"values": "[1, 2]"}, ("probabilities", "prior", "ordered", "default"))

# W&B's quantized distributions round to integers by default.
_FORMS: Mapping[str, _Form] = {
    "constant": _Form(Constant, {"value": "1"}, ("default",)),
    "derived": _Form(Derived, {"derived": "width * depth"}),
    "categorical": _CHOICE,
    "categorical_w_probabilities": _CHOICE,
    "uniform": _range(Uniform),
    "q_uniform": _range(partial(Uniform, step=1)),
    "int_uniform": _range(IntUniform),
    "log_int_uniform": _range(LogIntUniform, "1", "100"),
    "log_uniform": _range(partial(_from_exponents, "log_uniform")),
    "q_log_uniform": _range(partial(_from_exponents, "q_log_uniform", step=1)),
    "inv_log_uniform": _range(partial(_from_exponents, "inv_log_uniform", inverse=True)),
    "log_uniform_values": _Form(_log_uniform, {"min": "0.001", "max": "1"}, ("q", "points", "prior", "default", "or")),
    "q_log_uniform_values": _range(partial(LogUniform, step=1), "1", "100"),
    "inv_log_uniform_values": _range(LogUniform, "0.001"),
    "normal": _bell(Normal),
    "q_normal": _bell(partial(Normal, step=1)),
    "log_normal": _bell(LogNormal),
    "q_log_normal": _bell(partial(LogNormal, step=1)),
}

PARAMETER_FORMS: Mapping[str, tuple[str, ...]] = {name: form.keys for name, form in _FORMS.items()}
"""The values of `distribution`, and the keys of each."""

_PARAMETER_KEYS = tuple(
    dict.fromkeys(
        [
            *(key for keys in PARAMETER_FORMS.values() for key in keys),
            *("distribution", "when", "parameters", "choice", "repeat", "chain", "cell"),
        ]
    )
)
