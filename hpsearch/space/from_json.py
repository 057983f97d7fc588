"""Reading spaces from JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpsearch.config.checks import InvalidKey, shown
from hpsearch.space.cell import Cell
from hpsearch.space.choices import Categorical, Constant, Ordinal
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.space.normals import LogNormal, Normal
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.space.ranges import IntUniform, LogIntUniform, LogUniform, Uniform
from hpsearch.space.structures import Chain, Choice, Repeat
from hpsearch.trial import Value

__all__ = ["constraints_from_json", "declared_from_json", "distribution_from_json"]

_Json = Mapping[str, Value]

_KINDS: Mapping[str, type[Distribution]] = {
    cls.kind: cls
    for cls in (
        *(Uniform, LogUniform, IntUniform, LogIntUniform, Normal, LogNormal),
        *(Categorical, Ordinal, Constant, Derived),
    )
}


def distribution_from_json(config: _Json) -> Distribution:
    """Return the distribution that `Distribution.to_json` wrote."""
    fields = dict(config)
    kind = fields.pop("distribution", None)
    if kind not in _KINDS:
        raise InvalidKey(("distribution",), f"must be a known distribution, got {shown(kind)}")
    return _KINDS[kind](**fields)


def declared_from_json(items: Sequence[_Json]) -> tuple[Declared, ...]:
    """Return the parameters and structures that `Space.to_json` wrote."""
    return tuple(_declared(item) for item in items if "constraint" not in item)


def constraints_from_json(items: Sequence[_Json]) -> tuple[Expression, ...]:
    """Return the constraints that `Space.to_json` wrote."""
    return tuple(Expression(item["constraint"]) for item in items if "constraint" in item)


def _declared(item: _Json) -> Declared:
    fields = dict(item)
    path = tuple(fields.pop("path"))
    when = fields.pop("when", None)
    return Declared(path, _distribution_or_structure(fields), None if when is None else Expression(when))


def _distribution_or_structure(item: _Json) -> Distribution | Structure:
    for kind, read in _STRUCTURES.items():
        if kind in item:
            fields = dict(item)
            return read(fields.pop(kind), fields)
    return distribution_from_json(item)


def _only(item: _Json) -> tuple[Declared, ...]:
    return (_declared(item),)


_STRUCTURES: Mapping[str, Callable[[Value, dict[str, Value]], Structure]] = {
    ParameterGroup.kind: lambda inside, fields: ParameterGroup(declared_from_json(inside)),
    Choice.kind: lambda inside, fields: Choice({name: declared_from_json(one) for name, one in inside}),
    Repeat.kind: lambda inside, fields: Repeat(declared_from_json(inside), **fields),
    Chain.kind: lambda inside, fields: Chain(_only(inside), **fields),
    Cell.kind: lambda inside, fields: Cell(_only(inside), **fields),
}
