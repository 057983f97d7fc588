"""From points to others near them: mutations, neighbours, and points between two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from hpsearch.config.checks import InvalidKey
from hpsearch.seeds import crossover_bits, mutation_bits, redraw_seed
from hpsearch.space.distribution import own_copy
from hpsearch.space.parameter import Parameter
from hpsearch.space.structures import Repeated
from hpsearch.space.walk import Broken, Choose
from hpsearch.trial import Params, Value

__all__ = ["Movable"]

_ATTEMPTS = 1_000
"""Moves that break a constraint, or lead to an equal point, before that is an error."""


class Movable(ABC):
    """What moves from point to point; a space says the rest."""

    @abstractmethod
    def find(self, name: str) -> Parameter | None:
        """Give the parameter of a flat name."""

    @abstractmethod
    def build(self, choose: Choose) -> dict[str, Value]:
        """Give the point that these values make; raise `Broken` where there is none."""

    @abstractmethod
    def check(self, flat: Params, partial: bool = False) -> dict[str, Value]:
        """Give a point as it would have been drawn; raise `InvalidKey` where it is none."""

    @abstractmethod
    def key(self, params: Params) -> str:
        """Give what equal points share."""

    def mutable(self, point: Params) -> tuple[Parameter, ...]:
        """Give the parameters that another value may be drawn for than they have at this point."""
        known = [(parameter, point[name]) for name in point if (parameter := self.find(name)) is not None]
        return tuple(parameter for parameter, value in known if parameter.distribution.mutable(value))

    def mutate(self, params: Params, seed: int) -> dict[str, Value]:
        """Give a copy of a point in which one parameter has another value.

        Each that may have another is equally likely to be the one, and `Distribution.mutate` gives its value: another
        choice, or another number, mostly a near one. Real et al., "Regularized Evolution for Image Classifier
        Architecture Search", AAAI 2019, Figure 2, mutate an architecture in one place so. Of a repeated block one copy
        more is put in between, or one is taken out, each place equally likely. What applies only now is drawn; what no
        longer applies is gone. A move that breaks a constraint, or leads to an equal point, is made again otherwise.

        Args:
            params: Flat names to values.
            seed: Whoever mutates a point twice takes another; 0 <= seed < 2**64.

        Raises:
            InvalidKey: No parameter has another value, or the point doesn't lie in the space.
            Broken: No move that was tried keeps the constraints.
        """
        point = self.check(params)
        mutable = self.mutable(point)
        if not mutable:
            raise InvalidKey((), "must hold a parameter with another value than the point has, or nothing can change")
        own = self.key(point)
        for attempt in range(_ATTEMPTS):
            turn = _turn(seed, attempt)
            chosen = min(mutable, key=lambda known: mutation_bits(turn, known.path)[0])
            moved = _moved(point, chosen, mutation_bits(turn, chosen.path)[1])
            try:
                child = self.build(_filled(moved, turn))
            except Broken:
                continue
            if self.key(child) != own:
                return child
        told = f"must have another point nearby that keeps the constraints, but {_ATTEMPTS:,} moves led to none"
        raise Broken((), told)

    def neighbours(self, params: Params, seed: int = 0) -> list[dict[str, Value]]:
        """Give the points that are one step from this one, each once.

        A step gives one parameter another value (`Distribution.neighbours`), or puts one copy of a repeated block in
        between, or takes one out. What applies only then is drawn.

        Args:
            params: Flat names to values.
            seed: Of the draws.

        Raises:
            InvalidKey: The point doesn't lie in the space.
        """
        point = self.check(params)
        found = {self.key(point): point}
        for name in point:
            parameter = self.find(name)
            assert parameter is not None
            for moved in _steps(point, parameter):
                try:
                    near = self.build(_filled(moved, seed))
                except Broken:
                    continue
                found.setdefault(self.key(near), near)
        return list(found.values())[1:]

    def crossover(self, one: Params, other: Params, seed: int) -> dict[str, Value]:
        """Give a point each of whose values is that of one of two others, each equally likely: a uniform crossover.

        Syswerda, "Uniform Crossover in Genetic Algorithms", ICGA 1989. What only one of them has is taken from that
        one, and what neither has is drawn. A point that breaks a constraint gives way to another.

        Args:
            one: Flat names to values.
            other: Flat names to values.
            seed: Whoever crosses two points twice takes another; 0 <= seed < 2**64.

        Raises:
            InvalidKey: A point doesn't lie in the space.
            Broken: No point that was tried keeps the constraints.
        """
        parents = self.check(one), self.check(other)
        for attempt in range(_ATTEMPTS):
            turn = _turn(seed, attempt)

            def choose(parameter: Parameter, turn: int = turn) -> Value:
                having = [parent for parent in parents if parameter.name in parent]
                if not having:
                    return parameter.distribution.draw(mutation_bits(turn, parameter.path)[1])
                taken = having[crossover_bits(turn, parameter.path) % len(having)]
                return own_copy(taken[parameter.name])

            try:
                return self.build(choose)
            except Broken:
                continue
        told = f"must have a point between the two that keeps the constraints, but {_ATTEMPTS:,} moves led to none"
        raise Broken((), told)


def _turn(seed: int, attempt: int) -> int:
    """Give the seed of an attempt; the first one's is the seed itself."""
    return redraw_seed(seed % 2**32, attempt) + (seed >> 32 << 32) if attempt else seed


def _filled(point: Params, seed: int) -> Callable[[Parameter], Value]:
    """Take a point's values, and draw those that it lacks."""

    def choose(parameter: Parameter) -> Value:
        if parameter.name in point:
            return own_copy(point[parameter.name])
        return parameter.distribution.draw(mutation_bits(seed, parameter.path)[1])

    return choose


def _moved(point: Params, parameter: Parameter, bits: int) -> Mapping[str, Value]:
    """Move one parameter of a point."""
    value, distribution = point[parameter.name], parameter.distribution
    if not isinstance(parameter.holder, Repeated):
        return {**point, parameter.name: distribution.mutate(value, bits)}
    counts = distribution.neighbours(value)
    count, bits = counts[bits % len(counts)], bits // len(counts)
    return _recounted(point, parameter, count, bits % max(count, value))


def _steps(point: Params, parameter: Parameter) -> list[Mapping[str, Value]]:
    value = point[parameter.name]
    near = parameter.distribution.neighbours(value)
    if not isinstance(parameter.holder, Repeated):
        return [{**point, parameter.name: other} for other in near]
    return [_recounted(point, parameter, count, place) for count in near for place in range(max(count, value))]


def _recounted(point: Params, parameter: Parameter, count: int, place: int) -> Mapping[str, Value]:
    """Put a copy in before the one of this place, without values, or take that one out."""
    shift = count - point[parameter.name]
    prefix = f"{parameter.name}."
    out: dict[str, Value] = {}
    for name, value in point.items():
        if name.startswith(prefix):
            copy, dot, inside = name.removeprefix(prefix).partition(".")
            if shift < 0 and int(copy) == place:
                continue
            moved = int(copy) + (shift if int(copy) >= place else 0)
            name = f"{prefix}{moved}{dot}{inside}"
        out[name] = value
    out[parameter.name] = count
    return out
