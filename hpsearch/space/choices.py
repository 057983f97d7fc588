"""Values that are listed rather than measured."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, KeyPath, number, plain, shown
from hpsearch.space._near import bits_near, bits_of_mixture
from hpsearch.space.distribution import Distribution, own_copy, share_of
from hpsearch.trial import Value

__all__ = ["Categorical", "Constant", "Ordinal", "list_advice"]


@dataclass(frozen=True)
class Categorical(Distribution):
    """One of these values, each equally likely unless `probabilities` (which sum to 1) say otherwise.

    `prior` is one of them, believed to be good: near it, of k values, it is drawn with a weight of k, each other one
    with a weight of 1. With `probabilities` it has the same extra share, and the rest is drawn by them. None can't be
    one: it says that there is none.
    """

    kind: ClassVar[str] = "categorical"

    values: Sequence[Value]
    probabilities: Sequence[float] | None = None
    prior: Value = None

    def _check(self) -> None:
        self._take("values", _list_of(plain))
        if not self.values:
            raise InvalidKey(("values",), "must hold at least one value, got none")
        if self.probabilities is not None:
            self._take("probabilities", _list_of(number))
            self._check_probabilities(self.probabilities)
        self._take_prior()
        if self.prior is not None and not self.weight(self.prior):
            problem = f"must be a value that is drawn, but the probability of {shown(self.prior)} is 0"
            raise InvalidKey(("prior",), problem)

    def weight(self, value: Value) -> float:
        """Give how often a value is drawn, beside the weights of the others; 0 for one that isn't listed."""
        shares = [1.0] * len(self.values) if self.probabilities is None else self.probabilities
        pairs = zip(shares, self.values, strict=True)
        return sum(share for share, item in pairs if _identity(item) == _identity(value))

    def _check_probabilities(self, shares: Sequence[float]) -> None:
        if len(shares) != len(self.values):
            problem = f"must be as many as values ({len(self.values)}), got {len(shares)}"
            raise InvalidKey(("probabilities",), problem)
        for place, share in enumerate(shares):
            if not 0 <= share <= 1:
                raise InvalidKey(("probabilities", place), f"must be between 0 and 1, got {share}")
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise InvalidKey(("probabilities",), f"must sum to 1, got {sum(shares):.9g}")

    @cached_property
    def _thresholds(self) -> list[float]:
        assert self.probabilities is not None
        return list(accumulate(self.probabilities))

    def draw(self, bits: int) -> Value:
        """Give one of the values."""
        return self.at(share_of(bits))

    def near(self, bits: int) -> Value:
        """Give the prior more often than `draw` does: always in k - 1 of 2k - 1 draws, and in the rest by chance."""
        if self.prior is None:
            return self.draw(bits)
        count = len(self.values)
        rest = bits_of_mixture(count - 1, 2 * count - 1, bits)
        return own_copy(self.prior) if rest is None else self.draw(rest)

    def at(self, share: float) -> Value:
        """Give the value at this share, in [0, 1), of the whole probability."""
        if self.probabilities is None:
            return own_copy(self.values[int(share * len(self.values))])
        # Scaled, because probabilities may sum to a little less than 1; a share below the whole sum never
        # lands on a value of probability 0.
        place = bisect_right(self._thresholds, share * self._thresholds[-1])
        return own_copy(self.values[place])

    def grid(self) -> list[Value]:
        """Give the values in their order, repeated ones once; probabilities play no part."""
        return [own_copy(value) for value in {_identity(value): value for value in self.values}.values()]

    def every_value(self) -> list[Value]:
        """Give the values that have a probability, repeated ones once."""
        if self.probabilities is None:
            return self.grid()
        possible = [value for value, share in zip(self.values, self.probabilities, strict=True) if share > 0]
        return Categorical(possible).grid()

    def mutable(self, value: Value) -> bool:
        """Say whether another value has a probability."""
        return bool(self._others(value))

    def mutate(self, value: Value, bits: int) -> Value:
        """Give another value, by the probabilities that the others have beside each other."""
        others = self._others(value)
        if not others:
            return super().mutate(value, bits)
        values, shares = zip(*others, strict=True)
        whole = sum(shares)
        return Categorical(values, [share / whole for share in shares]).at(share_of(bits))

    def neighbours(self, value: Value) -> list[Value]:
        """Give every other value that has a probability."""
        return [own_copy(item) for item, _ in self._others(value)]

    def _others(self, value: Value) -> list[tuple[Value, float]]:
        """Give the values but this one that have a probability, each with it."""
        own = _identity(value)
        shares = self.probabilities or [1.0] * len(self.values)
        pairs = zip(self.values, shares, strict=True)
        return [(item, share) for item, share in pairs if share > 0 and _identity(item) != own]

    def accept(self, value: object) -> Value:
        """Give the listed value that this one equals."""
        same = _equal(value, self.values)
        if not same:
            known = ", ".join(shown(item) for item in self.values[:8])
            raise InvalidKey((), f"must be one of the values ({known}), got {shown(value)}")
        return own_copy(same[0])


@dataclass(frozen=True)
class Ordinal(Categorical):
    """One of these values, each equally likely, which rise or fall in some sense: neighbours in the list are alike."""

    kind: ClassVar[str] = "ordinal"

    def _check(self) -> None:
        super()._check()
        if self.probabilities is not None:
            raise InvalidKey(("probabilities",), "must not be given where the values are ordered", "remove them")
        if len(self.grid()) < len(self.values):
            raise InvalidKey(("values",), "must each stand there once where they are ordered")

    def place(self, value: Value) -> int:
        """Give where a value stands in the list, from 0."""
        return [_identity(item) for item in self.values].index(_identity(value))

    def share(self, value: Value) -> float:
        """Give the middle of the draws that give a value."""
        return (self.place(value) + 0.5) / len(self.values)

    def near(self, bits: int) -> Value:
        """Give a value near the prior, as a truncated normal around its place falls."""
        return self.draw(bits if self.prior is None else bits_near(self.share(self.prior), bits))

    def neighbours(self, value: Value) -> list[Value]:
        """Give the values beside it."""
        place = self.place(value)
        return [own_copy(self.values[near]) for near in (place - 1, place + 1) if 0 <= near < len(self.values)]

    def mutate(self, value: Value, bits: int) -> Value:
        """Give another value: three times in four one beside it, else any."""
        beside = self.neighbours(value)
        if not beside or bits % 4 == 0:
            return super().mutate(value, bits)
        return beside[(bits >> 2) % len(beside)]


@dataclass(frozen=True)
class Constant(Distribution):
    """Always this value."""

    kind: ClassVar[str] = "constant"
    searched: ClassVar[bool] = False

    value: Value

    def _check(self) -> None:
        self._take("value", plain)

    def draw(self, bits: int) -> Value:
        """Give the value."""
        return own_copy(self.value)

    def grid(self) -> list[Value]:
        """Give the value alone."""
        return [own_copy(self.value)]

    def every_value(self) -> list[Value]:
        """Give the value alone."""
        return self.grid()

    def accept(self, value: object) -> Value:
        """Give the value if this one equals it."""
        if not _equal(value, [self.value]):
            raise InvalidKey((), f"must be the constant {shown(self.value)}, got {shown(value)}")
        return own_copy(self.value)


def list_advice(given: object) -> str:
    """Say how what holds several values, and is no list, becomes one."""
    if isinstance(given, set | frozenset):
        return "write sorted(...): a set has another order in each process"
    if hasattr(given, "tolist"):
        return "write ....tolist(), as in np.logspace(-4, -1, 4).tolist()"
    return "write list(...)"


def _list_of(read: Callable[[object, KeyPath], Value]) -> Callable[[object, KeyPath], tuple[Value, ...]]:
    """Take a list of what `read` takes."""

    def read_list(given: object, key: KeyPath) -> tuple[Value, ...]:
        if isinstance(given, set | frozenset | Iterator):
            raise InvalidKey(key, f"must be a list, got a {type(given).__name__}", list_advice(given))
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise InvalidKey(key, f"must be a list, got {shown(given)}")
        return tuple(read(item, (*key, place)) for place, item in enumerate(given))

    return read_list


def _equal(value: object, known: Iterable[Value]) -> list[Value]:
    """Give those of the known values that equal this one: the same in kind, else numbers of another kind."""
    got = plain(value)
    own = _identity(got)
    same = [item for item in known if _identity(item) == own]
    return same or [item for item in known if _is_number(item) and _is_number(got) and item == got]


def _identity(value: Value) -> object:
    """Tell True from 1 and 1 from 1.0, which Python's == doesn't."""
    return (type(value), value) if isinstance(value, str | int) else json.dumps(value, sort_keys=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
