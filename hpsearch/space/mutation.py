"""Mutation, neighbours and crossover of configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from hpsearch.config.checks import InvalidKey
from hpsearch.seeds import crossover_bits, mutation_bits, redraw_seed
from hpsearch.space.distribution import own_copy
from hpsearch.space.parameter import Parameter
from hpsearch.space.structures import RepeatedStructure
from hpsearch.space.tree import Tree
from hpsearch.space.walk import Broken, Choose
from hpsearch.trial import Params, Value

_ATTEMPTS = 1_000
"""Maximum number of moves that break a constraint or lead to an equal configuration."""


class Mutations(Tree, ABC):
    """The part of `Space` that derives new configurations from known ones."""

    @abstractmethod
    def build(self, choose: Choose) -> dict[str, Value]:
        """See `Space.build`."""

    @abstractmethod
    def check(self, flat: Params, partial: bool = False) -> dict[str, Value]:
        """See `Space.check`."""

    @abstractmethod
    def key(self, params: Params) -> str:
        """See `Space.key`."""

    def mutable(self, point: Params) -> tuple[Parameter, ...]:
        """Return the parameters of a configuration for which another value can be sampled."""
        candidates = [(parameter, point[name]) for name in point if (parameter := self.find(name)) is not None]
        return tuple(parameter for parameter, value in candidates if parameter.distribution.mutable(value))

    def mutate(self, params: Params, seed: int) -> dict[str, Value]:
        """Return a copy of a configuration in which one parameter has another value.

        The parameter is chosen uniformly, and `Distribution.mutate` returns its value: another choice, or another
        number, mostly a near one. See Real et al., "Regularized Evolution for Image Classifier Architecture Search",
        AAAI 2019, Figure 2. In a repeated block, one copy is inserted or removed, at a uniformly chosen index.
        Parameters that become active are sampled; those that become inactive are dropped. A move that breaks a
        constraint, or leads to an equal configuration, is replaced by another.

        Args:
            params: Flat names to values.
            seed: 0 <= seed < 2**64. Different seeds lead to different mutations.

        Raises:
            InvalidKey: No parameter has another value, or the configuration is not in the space.
            Broken: No move that was tried keeps the constraints.
        """
        point = self.check(params)
        mutable = self.mutable(point)
        if not mutable:
            raise InvalidKey((), "must hold a parameter with another value than the point has, or nothing can change")
        key = self.key(point)
        for attempt in range(_ATTEMPTS):
            attempt_seed = _attempt_seed(seed, attempt)
            chosen = min(mutable, key=lambda known: mutation_bits(attempt_seed, known.path)[0])
            moved = _moved(point, chosen, mutation_bits(attempt_seed, chosen.path)[1])
            try:
                child = self.build(_completed(moved, attempt_seed))
            except Broken:
                continue
            if self.key(child) != key:
                return child
        problem = f"must have another point nearby that keeps the constraints, but {_ATTEMPTS:,} moves led to none"
        raise Broken((), problem)

    def neighbours(self, params: Params, seed: int = 0) -> list[dict[str, Value]]:
        """Return the configurations that are one step away, without duplicates.

        A step changes the value of one parameter (`Distribution.neighbours`), or inserts or removes one copy of a
        repeated block. Parameters that become active are sampled.

        Args:
            params: Flat names to values.
            seed: Seed of the sampled values.

        Raises:
            InvalidKey: The configuration is not in the space.
        """
        point = self.check(params)
        neighbours = {self.key(point): point}
        for name in point:
            parameter = self.find(name)
            assert parameter is not None
            for moved in _steps(point, parameter):
                try:
                    near = self.build(_completed(moved, seed))
                except Broken:
                    continue
                neighbours.setdefault(self.key(near), near)
        return list(neighbours.values())[1:]

    def crossover(self, one: Params, other: Params, seed: int) -> dict[str, Value]:
        """Return the uniform crossover of two configurations: each value is from one of them.

        Syswerda, "Uniform Crossover in Genetic Algorithms", ICGA 1989. If only one configuration has a parameter, its
        value is used; if neither has, the value is sampled. A configuration that breaks a constraint is replaced by
        another.

        Args:
            one: Flat names to values.
            other: Flat names to values.
            seed: 0 <= seed < 2**64. Different seeds lead to different crossovers.

        Raises:
            InvalidKey: A configuration is not in the space.
            Broken: No configuration that was tried keeps the constraints.
        """
        parents = self.check(one), self.check(other)
        for attempt in range(_ATTEMPTS):
            attempt_seed = _attempt_seed(seed, attempt)

            def choose(parameter: Parameter, seed: int = attempt_seed) -> Value:
                candidates = [parent for parent in parents if parameter.name in parent]
                if not candidates:
                    return parameter.distribution.draw(mutation_bits(seed, parameter.path)[1])
                parent = candidates[crossover_bits(seed, parameter.path) % len(candidates)]
                return own_copy(parent[parameter.name])

            try:
                return self.build(choose)
            except Broken:
                continue
        problem = f"must have a point between the two that keeps the constraints, but {_ATTEMPTS:,} moves led to none"
        raise Broken((), problem)


def _attempt_seed(seed: int, attempt: int) -> int:
    """Return the seed of an attempt; the first attempt uses `seed` itself."""
    return redraw_seed(seed % 2**32, attempt) + (seed >> 32 << 32) if attempt else seed


def _completed(point: Params, seed: int) -> Callable[[Parameter], Value]:
    """Return a function that returns the values of a configuration, and samples missing values."""

    def choose(parameter: Parameter) -> Value:
        if parameter.name in point:
            return own_copy(point[parameter.name])
        return parameter.distribution.draw(mutation_bits(seed, parameter.path)[1])

    return choose


def _moved(point: Params, parameter: Parameter, bits: int) -> Mapping[str, Value]:
    """Return a configuration with one parameter mutated."""
    value, distribution = point[parameter.name], parameter.distribution
    if not isinstance(parameter.holder, RepeatedStructure):
        return {**point, parameter.name: distribution.mutate(value, bits)}
    counts = distribution.neighbours(value)
    count, bits = counts[bits % len(counts)], bits // len(counts)
    return _recounted(point, parameter, count, bits % max(count, value))


def _steps(point: Params, parameter: Parameter) -> list[Mapping[str, Value]]:
    value = point[parameter.name]
    near = parameter.distribution.neighbours(value)
    if not isinstance(parameter.holder, RepeatedStructure):
        return [{**point, parameter.name: other} for other in near]
    return [_recounted(point, parameter, count, index) for count in near for index in range(max(count, value))]


def _recounted(point: Params, parameter: Parameter, count: int, index: int) -> Mapping[str, Value]:
    """Insert a copy without values before the copy of an index, or remove that copy."""
    shift = count - point[parameter.name]
    prefix = f"{parameter.name}."
    out: dict[str, Value] = {}
    for name, value in point.items():
        if name.startswith(prefix):
            copy, dot, inside = name.removeprefix(prefix).partition(".")
            if shift < 0 and int(copy) == index:
                continue
            moved = int(copy) + (shift if int(copy) >= index else 0)
            name = f"{prefix}{moved}{dot}{inside}"
        out[name] = value
    out[parameter.name] = count
    return out
