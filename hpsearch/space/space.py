"""The search space: named parameters, perhaps in nested groups, each with its distribution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar

from hpsearch.checks import InvalidKey, KeyPath, nearest, shown
from hpsearch.errors import SweepError
from hpsearch.seeds import draw_bits, is_near_prior, mutation_bits
from hpsearch.space.choices import Categorical, Constant, list_advice
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.normals import LogNormal, Normal
from hpsearch.space.ranges import IntUniform, LogIntUniform, LogUniform, Uniform
from hpsearch.trial import Params, Value

__all__ = ["Parameter", "Space", "distribution_from_json"]

_KINDS: Mapping[str, type[Distribution]] = {
    cls.kind: cls for cls in (Uniform, LogUniform, IntUniform, LogIntUniform, Normal, LogNormal, Categorical, Constant)
}

# Names become command-line options, columns and TensorBoard tags.
_NAME = re.compile(r"[^\W\d][\w.-]*")

_DEEPEST_GROUP = 20

# Keys of a parameter in W&B's notation: in Python they would pass for the names of a group.
_WANDB_KEYS = ("value", "values", "distribution", "min", "max", "parameters")


def distribution_from_json(given: Mapping[str, Value]) -> Distribution:
    """Read back what `Distribution.to_json` gave."""
    fields = dict(given)
    kind = fields.pop("distribution", None)
    if kind not in _KINDS:
        raise InvalidKey(("distribution",), f"must be a known distribution, got {shown(kind)}")
    return _KINDS[kind](**fields)


@dataclass(frozen=True)
class Parameter:
    """A leaf of the space."""

    path: tuple[str, ...]
    """Names of the groups around it, and its own. A name may hold dots and stays one name."""
    distribution: Distribution

    @property
    def name(self) -> str:
        """The flat name: `"optimizer.lr"`."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Space:
    """Parameters in order. The order is part of the space: columns and grids depend on it, and no draw."""

    law: ClassVar[int] = 2
    """Which draws and grids it gives; the sweep keeps it, so that a study ends by the law it began with."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        if not self.parameters:
            raise InvalidKey((), "must hold at least one parameter, got none")
        seen: dict[str, Parameter] = {}
        for parameter in self.parameters:
            for name in parameter.path:
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    problem = "must be named with letters, digits, _, - and dots, a letter first"
                    raise InvalidKey(parameter.path, problem)
            other = seen.setdefault(parameter.name, parameter)
            if other is not parameter:
                raise InvalidKey(
                    parameter.path,
                    f"has the same flat name ({parameter.name}) as another parameter",
                    "rename one: a dot in a name and a nested group can't be told apart in tables",
                )
        groups = {p.path[:depth] for p in self.parameters for depth in range(1, len(p.path))}
        for parameter in self.parameters:
            if parameter.path in groups:
                raise InvalidKey(parameter.path, "can't be a parameter and a group at once")

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, object]) -> Space:
        """Build a space as Python writes it.

        Args:
            parameters: Names to distributions. A list is a `Categorical`, a mapping a nested group, and any
                other plain value a `Constant`.

        Raises:
            InvalidKey: Something else, such as an array or a set: whether it is one value or a choice, and in which
                order, it doesn't say.
        """
        return cls(tuple(_leaves(parameters, ())))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Flat names, in order."""
        return tuple(parameter.name for parameter in self.parameters)

    def draw(self, seed: int, number: int) -> dict[str, Value]:
        """Draw the params of a trial; flat names to plain Python values.

        Each depends on the sweep's seed, the trial's number and the parameter's own path, and on no other parameter.

        Where parameters have a prior, trial 0 takes it, and of the others one half is drawn from near it, all of them
        at once; the other half is drawn as without, so that a wrong belief costs every second trial and no more. One
        half is what PriorBand (Mallik et al., NeurIPS 2023) gives the prior in a first rung; that it gives it more in
        later ones, and draws near the best trial as well, is nothing for draws that know of no other trial.
        """
        believed = self._has_priors
        near = believed and is_near_prior(seed, number)
        out: dict[str, Value] = {}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            distribution, bits = parameter.distribution, draw_bits(seed, number, parameter.path)
            if believed and number == 0 and distribution.prior is not None:
                out[name] = own_copy(distribution.prior)
            else:
                out[name] = distribution.near(bits) if near else distribution.draw(bits)
        return out

    def mutable(self, point: Params) -> tuple[Parameter, ...]:
        """Give the parameters that another value may be drawn for than they have at this point."""
        return tuple(known for known in self.parameters if known.distribution.mutable(point[known.name]))

    def mutate(self, params: Params, seed: int) -> dict[str, Value]:
        """Give a copy of a point in which one parameter has another value.

        Each that may have another is equally likely to be the one, and `Distribution.mutate` gives its value: another
        choice, or another number, mostly a near one. Real et al., "Regularized Evolution for Image Classifier
        Architecture Search", AAAI 2019, Figure 2, mutate an architecture in one place so.

        Args:
            params: Flat names to values.
            seed: Whoever mutates a point twice takes another; 0 <= seed < 2**64.

        Raises:
            InvalidKey: No parameter has another value, or the point doesn't lie in the space.
        """
        point = self.check(params)
        mutable = self.mutable(point)
        if not mutable:
            raise InvalidKey((), "must hold a parameter with another value than the point has, or nothing can change")
        by_turn = {known.name: (*mutation_bits(seed, known.path), known.distribution) for known in mutable}
        name = min(by_turn, key=lambda known: by_turn[known][0])
        _, bits, distribution = by_turn[name]
        return {**point, name: distribution.mutate(point[name], bits)}

    @cached_property
    def _has_priors(self) -> bool:
        return any(parameter.distribution.prior is not None for parameter in self.parameters)

    @cached_property
    def _grids(self) -> tuple[list[Value], ...]:
        out = []
        for parameter in self.parameters:
            try:
                out.append(self._grid_of(parameter.distribution))
            except InvalidKey as error:
                raise error.under(parameter.path) from None
        return tuple(out)

    @staticmethod
    def _grid_of(distribution: Distribution) -> list[Value]:
        return distribution.grid()

    @property
    def grid_size(self) -> int:
        """Number of points of the grid.

        Raises:
            InvalidKey: A parameter is continuous and names no `points`.
        """
        return prod(len(values) for values in self._grids)

    def grid_point(self, index: int) -> dict[str, Value]:
        """Give one point of the grid; the first parameter varies slowest."""
        if not 0 <= index < self.grid_size:
            raise SweepError(f"a grid point must be between 0 and {self.grid_size - 1}, got {index}")
        point = {}
        for name, values in zip(reversed(self.names), reversed(self._grids), strict=True):
            index, digit = divmod(index, len(values))
            point[name] = own_copy(values[digit])
        return {name: point[name] for name in self.names}

    def every_point(self, most: int) -> list[dict[str, Value]] | None:
        """Give all points that may be drawn, each once; None where they are more than `most`."""
        values = [parameter.distribution.every_value() for parameter in self.parameters]
        listed = [one for one in values if one is not None]
        if len(listed) < len(values) or prod(map(len, listed)) > most:
            return None
        return [dict(zip(self.names, map(own_copy, point), strict=True)) for point in product(*listed)]

    def nest(self, flat: Params) -> dict[str, Value]:
        """Give the params as the trainable sees them: groups as mappings."""
        out: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.name not in flat:
                continue
            group = out
            for name in parameter.path[:-1]:
                group = group.setdefault(name, {})
            group[parameter.path[-1]] = flat[parameter.name]
        return out

    def flatten(self, params: Mapping[str, object]) -> dict[str, Value]:
        """Give params flat names, in the space's order; groups may be nested, or flat already.

        Raises:
            InvalidKey: A name isn't in the space, or stands there twice.
        """
        found: dict[str, Value] = {}
        for path, name, value in self._named(params, ()):
            if name in found:
                raise InvalidKey(path, "stands there twice, flat and nested")
            found[name] = value
        return {name: found[name] for name in self.names if name in found}

    def _named(self, params: Mapping[str, object], path: tuple[str, ...]) -> Iterator[tuple[KeyPath, str, object]]:
        for key, value in params.items():
            here = (*path, str(key))
            name = ".".join(here)
            if name in self._known:
                yield here, name, value
            elif isinstance(value, Mapping) and any(known.startswith(f"{name}.") for known in self.names):
                yield from self._named(value, here)
            else:
                raise InvalidKey(here, "isn't a parameter", nearest(name, self.names))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def check(self, flat: Params, partial: bool = False) -> dict[str, Value]:
        """Give the params as the space would have drawn them, constants filled in.

        Args:
            flat: Flat names to values.
            partial: Parameters may be missing.

        Raises:
            InvalidKey: A value lies outside its distribution, or a parameter is missing.
        """
        unknown = next((name for name in flat if name not in self._known), None)
        if unknown is not None:
            raise InvalidKey((unknown,), "isn't a parameter", nearest(unknown, self.names))
        out = {}
        for parameter in self.parameters:
            try:
                if parameter.name in flat:
                    out[parameter.name] = parameter.distribution.accept(flat[parameter.name])
                elif isinstance(parameter.distribution, Constant):
                    out[parameter.name] = parameter.distribution.accept(parameter.distribution.value)
                elif not partial:
                    raise InvalidKey((), "is required")
            except InvalidKey as error:
                raise error.under(parameter.path) from None
        return out

    def to_json(self) -> list[dict[str, Value]]:
        """Give the space as JSON; `from_json` reads it back."""
        return [{"path": list(p.path), **p.distribution.to_json()} for p in self.parameters]

    @classmethod
    def from_json(cls, given: Sequence[Mapping[str, Value]]) -> Space:
        """Read back what `to_json` gave."""
        out = []
        for item in given:
            fields = dict(item)
            path = tuple(fields.pop("path"))
            out.append(Parameter(path, distribution_from_json(fields)))
        return cls(tuple(out))


def _leaves(given: object, path: tuple[str, ...]) -> Iterable[Parameter]:
    if not isinstance(given, Mapping):
        raise InvalidKey(path, f"must be a mapping of names to distributions, got {shown(given)}")
    if not given:
        raise InvalidKey(path, "must hold at least one parameter, got none")
    if len(path) > _DEEPEST_GROUP:
        raise InvalidKey(path, f"must not be nested deeper than {_DEEPEST_GROUP} groups")
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidKey(path, f"must have strings as names, got {shown(name)}")
        here = (*path, name)
        if isinstance(value, Distribution):
            yield Parameter(here, value)
        elif isinstance(value, Mapping):
            if _looks_like_wandb(value):
                raise InvalidKey(
                    here,
                    f"must be a distribution or a group, got W&B's notation ({', '.join(map(str, value))})",
                    "write hpsearch.Uniform(min, max), hpsearch.Categorical(values), ...",
                )
            yield from _leaves(value, here)
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes | list | tuple):
            problem = f"must be a distribution, a list of choices or a plain value, got a {type(value).__name__}"
            raise InvalidKey(here, problem, list_advice(value))
        else:
            kind = Categorical if isinstance(value, list | tuple) else Constant
            try:
                yield Parameter(here, kind(value))
            except InvalidKey as error:
                raise error.under(here) from None


def _looks_like_wandb(given: Mapping[object, object]) -> bool:
    return any(key in given and not isinstance(given[key], Distribution) for key in _WANDB_KEYS) and not any(
        isinstance(value, Distribution) for value in given.values()
    )
