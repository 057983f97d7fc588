"""The search space: what may be tried."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest, shown
from hpsearch.seeds import draw_bits, is_near_prior
from hpsearch.space.cell import Cell
from hpsearch.space.choices import Constant
from hpsearch.space.declaring import declared
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import own_copy
from hpsearch.space.enumeration import Enumeration
from hpsearch.space.expressions import ABSENT, Expression
from hpsearch.space.from_json import constraints_from_json, declared_from_json
from hpsearch.space.moves import Movable
from hpsearch.space.nesting import held, nested, unnested
from hpsearch.space.parameter import Declared, Parameter, Structure
from hpsearch.space.structures import Choice
from hpsearch.space.tree import Missing, Tree
from hpsearch.space.walk import UNKNOWN, Broken, Choose, Walk
from hpsearch.trial import Params, Value

__all__ = ["MOST_DRAWS", "Space"]

MOST_DRAWS = 100_000
"""Draws of one point, of which none keeps all constraints, before that is an error."""

_MOST_CALLED = 5_000
"""Of those, where each calls a function, which may take its time."""

_EXAMPLES = 1_000
"""Of those, looked at more closely."""


@dataclass(frozen=True)
class Space(Movable):
    """Parameters in order, some perhaps inside structures, and the constraints that a point must keep.

    The order is part of the space: columns and grids depend on it, and no draw. A point is a mapping of flat names to
    values, of the parameters that apply there and no others.
    """

    declared: tuple[Declared, ...]
    constraints: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        if not self.declared:
            raise InvalidKey((), "must hold at least one parameter, got none")
        _ = self._tree

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.declared, self.constraints)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, object], constraints: Iterable[str] = ()) -> Space:
        """Build a space as Python writes it.

        Args:
            parameters: Names to distributions or structures. A list is a `Categorical`, a mapping a nested group, and
                any other plain value a `Constant`.
            constraints: Expressions that every point must make true.

        Raises:
            InvalidKey: Something else, such as an array or a set: whether it is one value or a choice, and in which
                order, it doesn't say.
        """
        return cls(declared(parameters, ()), tuple(map(Expression, constraints)))

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.declared, self.constraints)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters that a point may have, in order: those of all branches and copies.

        Raises:
            InvalidKey: They have no end, as a block is repeated without a bound.
        """
        return self._tree.parameters

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their flat names.

        Raises:
            InvalidKey: They have no end.
        """
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def bounded(self) -> bool:
        """Whether the parameters have an end."""
        return self.unbounded is None

    @property
    def unbounded(self) -> tuple[str, ...] | None:
        """The path of a block that is repeated without a bound."""
        return self._tree.unbounded

    @property
    def conditional(self) -> bool:
        """Whether there are parameters that some points have and others don't."""
        return self._tree.conditional

    def everything(self) -> Iterator[Declared]:
        """Give what was declared, and what is declared inside, each block once."""
        return self._tree.everything()

    def find(self, name: str) -> Parameter | None:
        """Give the parameter of a flat name."""
        return self._tree.find(name)

    def structure(self, name: str) -> Structure | None:
        """Give the structure of a flat name."""
        return self._tree.structure(name)

    def some_names(self) -> list[str]:
        """Give the flat names of up to 1,000 parameters; of a block without a bound those of its first copies."""
        return self._tree.some_names()

    def columns(self, points: Iterable[Params]) -> tuple[str, ...]:
        """Give the names of the parameters that every point has, or one of these has, in order."""
        seen = dict.fromkeys(name for point in points for name in point)
        known = [name for name in seen if self.find(name) is not None]
        return tuple(sorted({*self._tree.always, *known}, key=self._tree.place))

    def build(self, choose: Choose) -> dict[str, Value]:
        """Give the point that these values make.

        Args:
            choose: Gives the value of each parameter that applies, in order, as its distribution has it.

        Raises:
            Broken: It breaks a constraint.
        """
        walk = Walk(self._tree, choose)
        for broken in walk.broken(self.constraints):
            raise broken
        return walk.point

    def applied(self, choose: Choose) -> dict[str, Value]:
        """Give what `build` gives, whether or not it breaks a constraint."""
        return Walk(self._tree, choose).point

    def draw(self, seed: int, number: int, most: int = MOST_DRAWS) -> dict[str, Value]:
        """Draw the params of a trial; flat names to plain Python values.

        Each depends on the sweep's seed, the trial's number and the parameter's own path, and on no other parameter.
        A point that breaks a constraint is drawn again, from bits of its own.

        Where parameters have a prior, trial 0 takes it, and of the others one half is drawn from near it, all of them
        at once; the other half is drawn as without, so that a wrong belief costs every second trial and no more. One
        half is what PriorBand (Mallik et al., NeurIPS 2023) gives the prior in a first rung; that it gives it more in
        later ones, and draws near the best trial as well, is nothing for draws that know of no other trial.

        Args:
            seed: The sweep's.
            number: The trial's.
            most: Draws before it is an error that none keeps the constraints.

        Raises:
            InvalidKey: None does.
        """
        return self.complete({}, seed, number, most)

    def complete(self, point: Params, seed: int, number: int, most: int = MOST_DRAWS) -> dict[str, Value]:
        """Draw what a partial point, as `check` gives it, leaves out; see `draw`."""
        if self.calls:
            most = min(most, _MOST_CALLED)
        for attempt in range(most):
            with suppress(Broken):
                return self.build(self._drawn(point, seed, number, attempt))
        examples = min(_EXAMPLES, most)
        walks = (Walk(self._tree, self._drawn(point, seed, number, attempt)) for attempt in range(examples))
        broken = [error for walk in walks for error in walk.broken(self.constraints)]
        key, count = Counter(error.key for error in broken).most_common(1)[0]
        example = next(error.problem for error in broken if error.key == key)
        problem = f"must be kept by more points: of {most:,} draws none is valid, and {count:,} of the first "
        advice = "loosen it, or narrow the parameters that it names"
        raise InvalidKey(key, f"{problem}{examples:,} break this; {example}", advice)

    def kept(self, seed: int, draws: int) -> int:
        """Count how many of this many first draws keep the constraints."""
        count = 0
        for number in range(draws):
            with suppress(Broken):
                self.build(self._drawn({}, seed, number, 0))
                count += 1
        return count

    def _drawn(self, point: Params, seed: int, number: int, attempt: int) -> Choose:
        near = self._has_priors and is_near_prior(seed, number)

        def choose(parameter: Parameter) -> Value:
            name, distribution = parameter.name, parameter.distribution
            if name in point:
                return own_copy(point[name])
            if number == 0 and distribution.prior is not None:
                return own_copy(distribution.prior)
            bits = draw_bits(seed, number, parameter.path, attempt)
            return distribution.near(bits) if near else distribution.draw(bits)

        return choose

    @property
    def calls(self) -> bool:
        """Whether a function is called for each point, which may take its time."""
        return self._tree.calls

    @cached_property
    def _has_priors(self) -> bool:
        return self._tree.has_priors

    def mutable(self, point: Params) -> tuple[Parameter, ...]:
        """Give the parameters that another value may be drawn for than they have at this point."""
        known = [(parameter, point[name]) for name in point if (parameter := self.find(name)) is not None]
        return tuple(parameter for parameter, value in known if parameter.distribution.mutable(value))

    @cached_property
    def _grid(self) -> Enumeration:
        key = self.key if self._has_cells else None
        return Enumeration(self._tree, self.build, bool(self.constraints), lambda known: known.grid(), key)

    @cached_property
    def _every(self) -> Enumeration:
        return Enumeration(self._tree, self.build, bool(self.constraints), lambda known: known.every_value())

    @property
    def grid_size(self) -> int:
        """Number of points of the grid.

        Raises:
            InvalidKey: A parameter is continuous and names no `points`, or a block is repeated without a bound.
        """
        return self._grid.size

    def grid_point(self, index: int) -> dict[str, Value]:
        """Give one point of the grid; the first parameter varies slowest."""
        return self._grid.point(index)

    @property
    def size(self) -> int | None:
        """Number of points that may be drawn, as they are written; None: infinitely many, or too many to count.

        Where conditions or constraints leave points out, they are counted one by one, and no more than 100,000.
        """
        return self._every.counted

    def every_point(self, most: int) -> list[dict[str, Value]] | None:
        """Give all points that may be drawn, each once; None where they are more than `most`."""
        found = self._every.points(most)
        return None if found is None else list({self.key(point): point for point in found}.values())

    def key(self, params: Params) -> str:
        """Give what equal points share: their values, as JSON, where equal cells count as one."""
        if not self._has_cells:
            return json.dumps(dict(params), sort_keys=True)
        return json.dumps([nested(self.declared, params, canonical=True), self._strange(params)], sort_keys=True)

    @cached_property
    def _has_cells(self) -> bool:
        return any(isinstance(one.holds, Cell) and one.holds.each == "node" for one in self.everything())

    def nest(self, flat: Params) -> dict[str, Value]:
        """Give the params as the trainable sees them, to keep: groups as mappings, copies as lists.

        What isn't a parameter, as a searcher of one's own may suggest it, stands at the top.
        """
        return {**nested(self.declared, flat), **self._strange(flat)}

    def top(self, flat: Params) -> list[tuple[str, Value, bool]]:
        """Give what was declared and a point has: its flat name, its value, as `nest` has it, and if it is a structure.

        What isn't a parameter stands last.
        """
        found = []
        for one in self.declared:
            value = held(one, flat)
            if value is not ABSENT:
                found.append((".".join(one.path), value, isinstance(one.holds, Structure)))
        return [*found, *((name, value, False) for name, value in self._strange(flat).items())]

    def _strange(self, flat: Params) -> dict[str, Value]:
        return {name: own_copy(value) for name, value in flat.items() if self.find(name) is None}

    def flatten(self, params: Mapping[str, object]) -> dict[str, Value]:
        """Give params flat names, in the space's order; groups and structures may be nested, or flat already.

        Raises:
            InvalidKey: A name isn't in the space, or stands there twice.
        """
        found: dict[str, Value] = {}
        for path, name, value in unnested(self._tree, params):
            if name in found:
                raise InvalidKey(path, "stands there twice, flat and nested")
            found[name] = value
        return {name: found[name] for name in sorted(found, key=self._tree.place)}

    def check(self, flat: Params, partial: bool = False) -> dict[str, Value]:
        """Give the params as the space would have drawn them, constants and derived values filled in.

        Args:
            flat: Flat names to values.
            partial: Parameters may be missing. One inside a branch says which branch is taken.

        Raises:
            InvalidKey: A value lies outside its distribution, or a parameter doesn't apply here.
            Missing: A parameter is missing.
            Broken: A constraint isn't kept.
        """
        given = dict(flat)
        for name in flat:
            if self.find(name) is None:
                raise InvalidKey((name,), "isn't a parameter", self._nearest(name))
        if partial:
            self._take_branches(given)

        def choose(parameter: Parameter) -> Value:
            distribution = parameter.distribution
            try:
                if parameter.name in given:
                    return distribution.accept(given[parameter.name])
                if isinstance(distribution, Constant):
                    return distribution.accept(distribution.value)
                if partial:
                    return UNKNOWN
            except InvalidKey as error:
                raise error.under(parameter.path) from None
            raise Missing(parameter.path, "is required")

        out = self.build(choose)
        self._check_used(given, out, partial)
        return out

    def _take_branches(self, given: dict[str, Value]) -> None:
        """Say which branches are taken where parameters inside them are given."""
        for name in list(given):
            parameter = self.find(name)
            assert parameter is not None
            for depth in range(1, len(parameter.path)):
                above = ".".join(parameter.path[:depth])
                if above not in given and isinstance(self._tree.structure(above), Choice):
                    given[above] = parameter.path[depth]

    def _check_used(self, given: Mapping[str, Value], point: Params, partial: bool) -> None:
        """Refuse what is given and has no place in the point, and derived values that are others."""
        for name, value in given.items():
            parameter = self.find(name)
            assert parameter is not None
            if isinstance(parameter.distribution, Derived):
                own = point.get(name, ABSENT)
                if own is ABSENT or own != value:
                    gives = "which isn't known yet" if own is ABSENT else shown(own)
                    problem = f"must be what {parameter.distribution.expression} gives, {gives}, got {shown(value)}"
                    raise InvalidKey(parameter.path, problem, "leave it out: it follows from the others")
            elif name not in point:
                advice = "give what decides whether it applies, too" if partial else "leave it out"
                problem = f"doesn't apply beside the other values, got {shown(value)}"
                raise InvalidKey(parameter.path, problem, advice)

    def _nearest(self, name: str) -> str:
        return nearest(name, self.some_names())

    def to_json(self) -> list[dict[str, Value]]:
        """Give the space as JSON; `from_json` reads it back."""
        return [
            *(one.to_json() for one in self.declared),
            *({"constraint": constraint.text} for constraint in self.constraints),
        ]

    @classmethod
    def from_json(cls, given: Sequence[Mapping[str, Value]]) -> Space:
        """Read back what `to_json` gave."""
        return cls(declared_from_json(given), constraints_from_json(given))
