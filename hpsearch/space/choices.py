"""Distributions over listed values: categorical, ordinal and constant parameters."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, KeyPath, is_number, number, plain, shown
from hpsearch.space.distribution import Distribution, bits_near, bits_of_mixture, own_copy, share_of
from hpsearch.trial import Value


@dataclass(frozen=True)
class Categorical(Distribution):
    """One of these values, all equally likely unless `probabilities` are set, which must sum to 1.

    `prior` is the value that is believed to be good. Of k values, sampling near the prior has weight k for it and
    weight 1 for each other value. With `probabilities`, the prior gets the same extra share, and the rest is sampled
    by them. The prior cannot be None, which means that there is no prior.
    """

    kind: ClassVar[str] = "categorical"

    values: Sequence[Value]
    probabilities: Sequence[float] | None = None
    prior: Value = None
    default: Value = None

    def _check(self) -> None:
        self._set("values", _list_of(plain))
        if not self.values:
            raise InvalidKey(("values",), "must hold at least one value, got none")
        if self.probabilities is not None:
            self._set("probabilities", _list_of(number))
            self._check_probabilities(self.probabilities)
        self._set_accepted("prior")
        if self.prior is not None and not self.weight(self.prior):
            problem = f"must be a value that is drawn, but the probability of {shown(self.prior)} is 0"
            raise InvalidKey(("prior",), problem)

    def weight(self, value: Value) -> float:
        """Return the relative weight of a value; 0 if it is not listed."""
        return sum(weight for item, weight in self._weighted() if _identity(item) == _identity(value))

    def _weighted(self) -> Iterator[tuple[Value, float]]:
        """Yield each value with its relative weight."""
        shares = [1.0] * len(self.values) if self.probabilities is None else self.probabilities
        return zip(self.values, shares, strict=True)

    def _check_probabilities(self, probabilities: Sequence[float]) -> None:
        if len(probabilities) != len(self.values):
            problem = f"must be as many as values ({len(self.values)}), got {len(probabilities)}"
            raise InvalidKey(("probabilities",), problem)
        for index, probability in enumerate(probabilities):
            if not 0 <= probability <= 1:
                raise InvalidKey(("probabilities", index), f"must be between 0 and 1, got {probability}")
        if not math.isclose(sum(probabilities), 1.0, abs_tol=1e-6):
            raise InvalidKey(("probabilities",), f"must sum to 1, got {sum(probabilities):.9g}")

    @cached_property
    def _thresholds(self) -> list[float]:
        assert self.probabilities is not None
        return list(accumulate(self.probabilities))

    def draw(self, bits: int) -> Value:
        """Return the value that these random bits select."""
        return self.at(share_of(bits))

    def near(self, bits: int) -> Value:
        """Return the prior with probability (k - 1) / (2k - 1), otherwise a sample as in `draw`."""
        if self.prior is None:
            return self.draw(bits)
        count = len(self.values)
        other_bits = bits_of_mixture(count - 1, 2 * count - 1, bits)
        return own_copy(self.prior) if other_bits is None else self.draw(other_bits)

    def at(self, share: float) -> Value:
        """Return the value at a cumulative probability in [0, 1)."""
        if self.probabilities is None:
            return own_copy(self.values[int(share * len(self.values))])
        # Scaled, because probabilities may sum to a little less than 1; a share below the whole sum never
        # selects a value of probability 0.
        index = bisect_right(self._thresholds, share * self._thresholds[-1])
        return own_copy(self.values[index])

    def grid(self) -> list[Value]:
        """Return the values in order without duplicates, including those with probability 0."""
        return [own_copy(value) for value in {_identity(value): value for value in self.values}.values()]

    def every_value(self) -> list[Value]:
        """Return the values whose probability is not 0, without duplicates."""
        if self.probabilities is None:
            return self.grid()
        return Categorical([value for value, weight in self._weighted() if weight > 0]).grid()

    @cached_property
    def _indices(self) -> Mapping[object, int]:
        return {_identity(value): index for index, value in enumerate(self.every_value())}

    def index(self, value: Value) -> int:
        """Return the index of a value in `every_value`.

        Raises:
            KeyError: The value is never sampled.
        """
        return self._indices[_identity(value)]

    def mutable(self, value: Value) -> bool:
        """Return whether there is another value whose probability is not 0."""
        return bool(self._others(value))

    def mutate(self, value: Value, bits: int) -> Value:
        """Return another value, sampled by the probabilities of the other values."""
        others = self._others(value)
        if not others:
            return super().mutate(value, bits)
        values, weights = zip(*others, strict=True)
        total = sum(weights)
        return Categorical(values, [weight / total for weight in weights]).at(share_of(bits))

    def neighbours(self, value: Value) -> list[Value]:
        """Return every other value whose probability is not 0."""
        return [own_copy(item) for item, _ in self._others(value)]

    def _others(self, value: Value) -> list[tuple[Value, float]]:
        """Return the other values whose probability is not 0, with their probabilities."""
        identity = _identity(value)
        return [(item, weight) for item, weight in self._weighted() if weight > 0 and _identity(item) != identity]

    def accept(self, value: object) -> Value:
        """Return the listed value that equals this value."""
        equal = _equal(value, self.values)
        if not equal:
            listed = ", ".join(shown(item) for item in self.values[:8])
            raise InvalidKey((), f"must be one of the values ({listed}), got {shown(value)}")
        return own_copy(equal[0])


@dataclass(frozen=True)
class Ordinal(Categorical):
    """One of these ordered values, all equally likely. Neighbours in the list are similar."""

    kind: ClassVar[str] = "ordinal"

    def _check(self) -> None:
        super()._check()
        if self.probabilities is not None:
            raise InvalidKey(("probabilities",), "must not be given where the values are ordered", "remove them")
        if len(self.grid()) < len(self.values):
            raise InvalidKey(("values",), "must be distinct where they are ordered")

    def share(self, value: Value) -> float:
        """Return the middle of the interval of the unit scale that selects a value."""
        return (self.index(value) + 0.5) / len(self.values)

    def near(self, bits: int) -> Value:
        """Return a value near the prior, from a truncated normal around its index."""
        return self.draw(bits if self.prior is None else bits_near(self.share(self.prior), bits))

    def neighbours(self, value: Value) -> list[Value]:
        """Return the previous and the next value."""
        index = self.index(value)
        return [own_copy(self.values[near]) for near in (index - 1, index + 1) if 0 <= near < len(self.values)]

    def mutate(self, value: Value, bits: int) -> Value:
        """Return another value: a neighbour with probability 3/4, otherwise any."""
        neighbours = self.neighbours(value)
        if not neighbours or bits % 4 == 0:
            return super().mutate(value, bits)
        return neighbours[(bits >> 2) % len(neighbours)]


@dataclass(frozen=True)
class Constant(Distribution):
    """Always this value."""

    kind: ClassVar[str] = "constant"
    searched: ClassVar[bool] = False

    value: Value
    default: Value = None

    def _check(self) -> None:
        self._set("value", plain)

    def draw(self, bits: int) -> Value:
        """Return the value."""
        return own_copy(self.value)

    def grid(self) -> list[Value]:
        """Return a list of the single value."""
        return [own_copy(self.value)]

    every_value = grid

    def accept(self, value: object) -> Value:
        """Return the constant if `value` equals it."""
        if not _equal(value, [self.value]):
            raise InvalidKey((), f"must be the constant {shown(self.value)}, got {shown(value)}")
        return own_copy(self.value)


def list_advice(values: object) -> str:
    """Return advice on how to turn an iterable into a list."""
    if isinstance(values, set | frozenset):
        return "write sorted(...): a set has another order in each process"
    if hasattr(values, "tolist"):
        return "write ....tolist(), as in np.logspace(-4, -1, 4).tolist()"
    return "write list(...)"


def _list_of(read: Callable[[object, KeyPath], Value]) -> Callable[[object, KeyPath], tuple[Value, ...]]:
    """Return a function that reads a list, each item with `read`."""

    def read_list(values: object, key: KeyPath) -> tuple[Value, ...]:
        if isinstance(values, set | frozenset | Iterator):
            raise InvalidKey(key, f"must be a list, got a {type(values).__name__}", list_advice(values))
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidKey(key, f"must be a list, got {shown(values)}")
        return tuple(read(item, (*key, index)) for index, item in enumerate(values))

    return read_list


def _equal(value: object, values: Iterable[Value]) -> list[Value]:
    """Return the known values of the same type that equal this value; if there are none, equal numbers."""
    got = plain(value)
    identity = _identity(got)
    equal = [item for item in values if _identity(item) == identity]
    return equal or [item for item in values if is_number(item) and is_number(got) and item == got]


def _identity(value: Value) -> object:
    """Return a key that differs for True, 1 and 1.0, which Python's == does not tell apart."""
    return (type(value), value) if isinstance(value, str | int) else json.dumps(value, sort_keys=True)
