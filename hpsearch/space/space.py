"""The search space."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest, shown, under
from hpsearch.seeds import draw_bits, is_near_prior
from hpsearch.space.cell import Cell
from hpsearch.space.choices import Categorical, Constant, Ordinal
from hpsearch.space.declarations import declare
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.enumeration import Enumeration
from hpsearch.space.expressions import ABSENT, Expression
from hpsearch.space.mutation import Mutations
from hpsearch.space.numbers import IntUniform, LogIntUniform, LogNormal, LogUniform, Normal, Uniform, ZeroOrLogUniform
from hpsearch.space.parameter import Declared, Parameter, ParameterGroup, Structure
from hpsearch.space.structures import Chain, Choice, Repeat
from hpsearch.space.tree import MissingParameter, nested, nested_value
from hpsearch.space.walk import UNKNOWN, Broken, Choose, Walk
from hpsearch.trial import Params, Value

MOST_DRAWS = 100_000
"""Maximum number of attempts to sample a configuration that keeps all constraints."""

_MOST_CALLED = 5_000
"""The same, if each attempt calls a function, which may be slow."""

_EXAMPLES = 1_000
"""Number of failed attempts that are analyzed for the error message."""

_Json = Mapping[str, Value]

_KINDS: Mapping[str, type[Distribution]] = {
    cls.kind: cls
    for cls in (
        *(Uniform, LogUniform, ZeroOrLogUniform, IntUniform, LogIntUniform, Normal, LogNormal),
        *(Categorical, Ordinal, Constant, Derived),
    )
}


@dataclass(frozen=True)
class Space(Mutations):
    """An ordered set of parameters and structures, and the constraints on configurations.

    A configuration (`Params`) is a mapping of flat names to values. It has exactly the active parameters. Columns and
    grids depend on the order of the parameters; samples do not.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.declared, self.constraints)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, object], constraints: Iterable[str] = ()) -> Space:
        """Build a space from a mapping.

        Args:
            parameters: Names to distributions or structures. A list is a `Categorical`, a mapping a nested group, and
                any other plain value a `Constant`.
            constraints: Expressions that must be true for every configuration.

        Raises:
            InvalidKey: A value cannot be read. Arrays and sets are refused because it is ambiguous whether they are one
                value or a choice, and in which order.
        """
        return cls(declare(parameters, ()), tuple(map(Expression, constraints)))

    def columns(self, points: Iterable[Params]) -> tuple[str, ...]:
        """Return the names of the parameters that are always active, or active in one of `points`, in order."""
        names = dict.fromkeys(name for point in points for name in point)
        declared = [name for name in names if self.find(name) is not None]
        return tuple(sorted({*self.always, *declared}, key=self.position))

    def build(self, choose: Choose) -> dict[str, Value]:
        """Return the configuration that `choose` selects.

        Args:
            choose: Returns the value of a parameter. Called for each active parameter, in order.

        Raises:
            Broken: The configuration breaks a constraint.
        """
        walk = Walk(self, choose)
        for broken in walk.broken():
            raise broken
        return walk.point

    def applied(self, choose: Choose) -> dict[str, Value]:
        """Return the same as `build`, also if the configuration breaks a constraint."""
        return Walk(self, choose).point

    def draw(self, seed: int, number: int, most: int = MOST_DRAWS) -> dict[str, Value]:
        """Sample the params of a trial: flat names to plain Python values.

        A value depends only on the seed of the sweep, the number of the trial and the path of the parameter. A
        configuration that breaks a constraint is sampled again, from other random bits.

        If parameters have priors, trial 0 uses them. Half of the other trials are sampled near the priors, with all
        their parameters, and half from the whole space, so that a wrong prior wastes at most every second trial.
        PriorBand (Mallik et al., NeurIPS 2023) uses the same half for the first rung. It uses more in later rungs, and
        also samples near the best trial; here, samples do not depend on other trials.

        Args:
            seed: Seed of the sweep.
            number: Number of the trial.
            most: Maximum number of attempts.

        Raises:
            InvalidKey: No attempt keeps the constraints.
        """
        return self.complete({}, seed, number, most)

    def complete(self, point: Params, seed: int, number: int, most: int = MOST_DRAWS) -> dict[str, Value]:
        """Sample the missing params of a partial configuration that `check` returned; see `draw`."""
        if self.calls:
            most = min(most, _MOST_CALLED)
        for attempt in range(most):
            with suppress(Broken):
                return self.build(self._drawn(point, seed, number, attempt))
        examples = min(_EXAMPLES, most)
        walks = (Walk(self, self._drawn(point, seed, number, attempt)) for attempt in range(examples))
        broken = [error for walk in walks for error in walk.broken()]
        key, count = Counter(error.key for error in broken).most_common(1)[0]
        example = next(error.problem for error in broken if error.key == key)
        problem = f"must be kept by more points: of {most:,} draws none is valid, and {count:,} of the first "
        advice = "loosen it, or narrow the parameters that it names"
        raise InvalidKey(key, f"{problem}{examples:,} break this; {example}", advice)

    def count_valid(self, seed: int, draws: int) -> int:
        """Return how many of the first `draws` samples keep the constraints."""
        count = 0
        for number in range(draws):
            with suppress(Broken):
                self.build(self._drawn({}, seed, number, 0))
                count += 1
        return count

    def _drawn(self, point: Params, seed: int, number: int, attempt: int) -> Choose:
        near = self.has_priors and is_near_prior(seed, number)

        def choose(parameter: Parameter) -> Value:
            name, distribution = parameter.name, parameter.distribution
            if name in point:
                return own_copy(point[name])
            if number == 0 and distribution.prior is not None:
                return own_copy(distribution.prior)
            bits = draw_bits(seed, number, parameter.path, attempt)
            return distribution.near(bits) if near else distribution.draw(bits)

        return choose

    @cached_property
    def _grid(self) -> Enumeration:
        key = self.key if self._has_cells else None
        return Enumeration(self, lambda known: known.grid(), key)

    @cached_property
    def _every(self) -> Enumeration:
        return Enumeration(self, lambda known: known.every_value())

    @property
    def grid_size(self) -> int:
        """Number of configurations in the grid.

        Raises:
            InvalidKey: A parameter is continuous and has no `points`, or a block is repeated without a bound.
        """
        return self._grid.size

    def grid_point(self, index: int) -> dict[str, Value]:
        """Return a configuration of the grid by its index; the first parameter varies slowest."""
        return self._grid.point(index)

    @property
    def size(self) -> int | None:
        """Number of configurations; None if it is infinite or too large to count.

        With conditions or constraints, configurations are counted one by one, up to 100,000. Isomorphic cells are
        counted separately.
        """
        return self._every.counted

    def every_point(self, most: int) -> list[dict[str, Value]] | None:
        """Return all configurations without duplicates; None if there are more than `most`."""
        points = self._every.points(most)
        return None if points is None else list({self.key(point): point for point in points}.values())

    def key(self, params: Params) -> str:
        """Return a JSON string that is the same for equal configurations; isomorphic cells are equal."""
        if not self._has_cells:
            return json.dumps(dict(params), sort_keys=True)
        return json.dumps([nested(self.declared, params, canonical=True), self._unknown(params)], sort_keys=True)

    @cached_property
    def _has_cells(self) -> bool:
        return any(isinstance(item.holds, Cell) and item.holds.each == "node" for _, item in self.everything())

    def nest(self, flat: Params) -> dict[str, Value]:
        """Return a copy of params as the trainable gets them: groups are mappings, copies are lists.

        Unknown parameters, which a custom searcher may suggest, are kept at the top level.
        """
        return {**nested(self.declared, flat), **self._unknown(flat)}

    def top_level(self, flat: Params) -> list[tuple[str, Value, bool]]:
        """Return the top level of nested params: for each entry, flat name, value, and whether it is a structure.

        Unknown parameters are last.
        """
        entries = []
        for item in self.declared:
            value = nested_value(item, flat)
            if value is not ABSENT:
                entries.append((".".join(item.path), value, isinstance(item.holds, Structure)))
        return [*entries, *((name, value, False) for name, value in self._unknown(flat).items())]

    def _unknown(self, flat: Params) -> dict[str, Value]:
        return {name: own_copy(value) for name, value in flat.items() if self.find(name) is None}

    def flatten(self, params: Mapping[str, object]) -> dict[str, Value]:
        """Return params with flat names, in the order of the space. Input may be nested, flat, or mixed.

        Raises:
            InvalidKey: A name is not in the space, or is repeated.
        """
        flat: dict[str, Value] = {}
        for path, name, value in self.unnested(params):
            if name in flat:
                raise InvalidKey(path, "is there twice, flat and nested")
            flat[name] = value
        return {name: flat[name] for name in sorted(flat, key=self.position)}

    def check(self, flat: Params, partial: bool = False) -> dict[str, Value]:
        """Return validated params as the space would have sampled them, with constants and derived values.

        Args:
            flat: Flat names to values.
            partial: Parameters may be missing. A parameter of a branch selects that branch.

        Raises:
            InvalidKey: A value is not in its distribution, or a parameter is inactive.
            MissingParameter: A parameter is missing.
            Broken: A constraint is broken.
        """
        values = dict(flat)
        for name in flat:
            if self.find(name) is None:
                raise InvalidKey((name,), "isn't a parameter", nearest(name, self.some_names()))
        if partial:
            self._select_branches(values)

        def choose(parameter: Parameter) -> Value:
            distribution = parameter.distribution
            try:
                if parameter.name in values:
                    return distribution.accept(values[parameter.name])
                if isinstance(distribution, Constant):
                    return distribution.accept(distribution.value)
                if partial:
                    return UNKNOWN
            except InvalidKey as error:
                raise error.under(parameter.path) from None
            raise MissingParameter(parameter.path, "is required")

        out = self.build(choose)
        self._check_used(values, out, partial)
        return out

    def with_defaults(self, flat: Params) -> dict[str, Value]:
        """Return params with the defaults of active parameters that they lack, in order; derived values are computed.

        Args:
            flat: Flat names to values. Only those that decide what a structure contains are checked: trials of another
                search may have had other ranges.

        Raises:
            InvalidKey: A structure has a value that is not in its distribution.
        """

        def choose(parameter: Parameter) -> Value:
            if parameter.name in flat:
                value = flat[parameter.name]
                if parameter.holder is None:
                    return own_copy(value)
                with under(parameter.path):
                    return parameter.distribution.accept(value)
            default = parameter.distribution.default
            return UNKNOWN if default is None else own_copy(default)

        params = {**self.applied(choose), **flat}
        return {name: params[name] for name in sorted(params, key=self.position)}

    def fitted(self, flat: Params) -> dict[str, Value]:
        """Return the params of a trial from another space as this one has them.

        Parameters that this space doesn't have are dropped, and missing ones get their default.

        Raises:
            InvalidKey: The trial can't be from this space; see `check`.
        """
        return self.check(self.with_defaults({name: value for name, value in flat.items() if self.find(name)}))

    def _select_branches(self, values: dict[str, Value]) -> None:
        """Select the branches whose parameters have values."""
        for name in list(values):
            parameter = self.find(name)
            assert parameter is not None
            for depth in range(1, len(parameter.path)):
                above = ".".join(parameter.path[:depth])
                if above not in values and isinstance(self.structure(above), Choice):
                    values[above] = parameter.path[depth]

    def _check_used(self, values: Mapping[str, Value], point: Params, partial: bool) -> None:
        """Raise an InvalidKey for values of inactive parameters, and for wrong derived values."""
        for name, value in values.items():
            parameter = self.find(name)
            assert parameter is not None
            if isinstance(parameter.distribution, Derived):
                own_value = point.get(name, ABSENT)
                if own_value is ABSENT or own_value != value:
                    gives = "which isn't known yet" if own_value is ABSENT else shown(own_value)
                    problem = f"must be what {parameter.distribution.expression} gives, {gives}, got {shown(value)}"
                    raise InvalidKey(parameter.path, problem, "leave it out: it follows from the others")
            elif name not in point:
                advice = "give what decides whether it applies, too" if partial else "leave it out"
                problem = f"doesn't apply with the other values, got {shown(value)}"
                raise InvalidKey(parameter.path, problem, advice)

    def to_json(self) -> list[dict[str, Value]]:
        """Return the space as JSON; `from_json` reads it."""
        return [
            *(item.to_json() for item in self.declared),
            *({"constraint": constraint.text} for constraint in self.constraints),
        ]

    @classmethod
    def from_json(cls, items: Sequence[Mapping[str, Value]]) -> Space:
        """Return the space that `to_json` wrote."""
        return cls(
            _declared_from_json(items), tuple(Expression(item["constraint"]) for item in items if "constraint" in item)
        )


def distribution_from_json(config: _Json) -> Distribution:
    """Return the distribution that `Distribution.to_json` wrote."""
    fields = dict(config)
    kind = fields.pop("distribution", None)
    if kind not in _KINDS:
        raise InvalidKey(("distribution",), f"must be a known distribution, got {shown(kind)}")
    return _KINDS[kind](**fields)


def _declared_from_json(items: Sequence[_Json]) -> tuple[Declared, ...]:
    """Return the parameters and structures that `Space.to_json` wrote."""
    return tuple(_declared(item) for item in items if "constraint" not in item)


def _declared(item: _Json) -> Declared:
    fields = dict(item)
    path = tuple(fields.pop("path"))
    when = fields.pop("when", None)
    return Declared(path, _distribution_or_structure(fields), None if when is None else Expression(when))


def _distribution_or_structure(item: _Json) -> Distribution | Structure:
    match item:
        case {"parameters": inside}:
            return ParameterGroup(_declared_from_json(inside))
        case {"choice": branches}:
            return Choice({name: _declared_from_json(branch) for name, branch in branches})
        case {"repeat": block, **bounds}:
            return Repeat(_declared_from_json(block), **bounds)
        case {"chain": layer, **bounds}:
            return Chain((_declared(layer),), **bounds)
        case {"cell": operation, **fields}:
            return Cell((_declared(operation),), **fields)
    return distribution_from_json(item)
