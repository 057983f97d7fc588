"""Values that are listed rather than measured."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from hpsearch.checks import InvalidKey, number, plain, refuse, shown
from hpsearch.space.distribution import Distribution, own_copy, share_of
from hpsearch.trial import Value

__all__ = ["Categorical", "Constant", "list_advice"]


@dataclass(frozen=True)
class Categorical(Distribution):
    """One of these values, each equally likely unless `probabilities` (which sum to 1) say otherwise."""

    kind: ClassVar[str] = "categorical"

    values: Sequence[Value]
    probabilities: Sequence[float] | None = None

    def __post_init__(self) -> None:
        try:
            values = self._checked_list("values", self.values)
            if not values:
                raise InvalidKey(("values",), "must hold at least one value, got none")
            probabilities = self._checked_probabilities(len(values))
        except InvalidKey as error:
            refuse(self, error.key, error.problem, error.advice)
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "probabilities", probabilities)

    @staticmethod
    def _checked_list(name: str, given: object) -> list[Value]:
        if isinstance(given, set | frozenset | Iterator):
            raise InvalidKey((name,), f"must be a list, got a {type(given).__name__}", list_advice(given))
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise InvalidKey((name,), f"must be a list, got {shown(given)}")
        return [plain(item, (name, place)) for place, item in enumerate(given)]

    def _checked_probabilities(self, count: int) -> tuple[float, ...] | None:
        if self.probabilities is None:
            return None
        given = self._checked_list("probabilities", self.probabilities)
        out = tuple(number(item, ("probabilities", place)) for place, item in enumerate(given))
        if len(out) != count:
            raise InvalidKey(("probabilities",), f"must be as many as values ({count}), got {len(out)}")
        for place, share in enumerate(out):
            if not 0 <= share <= 1:
                raise InvalidKey(("probabilities", place), f"must be between 0 and 1, got {share}")
        if not math.isclose(sum(out), 1.0, abs_tol=1e-6):
            raise InvalidKey(("probabilities",), f"must sum to 1, got {sum(out):.9g}")
        return out

    @cached_property
    def _thresholds(self) -> list[float]:
        assert self.probabilities is not None
        return list(accumulate(self.probabilities))

    def draw(self, bits: int) -> Value:
        """Give one of the values."""
        return self.at(share_of(bits))

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

    def accept(self, value: object) -> Value:
        """Give the listed value that this one equals."""
        got = plain(value)
        same = [known for known in self.values if _identity(known) == _identity(got)]
        same += [known for known in self.values if _is_number(known) and _is_number(got) and known == got]
        if not same:
            known = ", ".join(shown(item) for item in self.values[:8])
            raise InvalidKey((), f"must be one of the values ({known}), got {shown(value)}")
        return own_copy(same[0])


@dataclass(frozen=True)
class Constant(Distribution):
    """Always this value."""

    kind: ClassVar[str] = "constant"

    value: Value

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "value", plain(self.value, ("value",)))
        except InvalidKey as error:
            refuse(self, error.key, error.problem, error.advice)

    def draw(self, bits: int) -> Value:
        """Give the value."""
        return own_copy(self.value)

    def grid(self) -> list[Value]:
        """Give the value alone."""
        return [own_copy(self.value)]

    def accept(self, value: object) -> Value:
        """Give the value if this one equals it."""
        if _identity(plain(value)) != _identity(self.value) and not (
            _is_number(value) and _is_number(self.value) and value == self.value
        ):
            raise InvalidKey((), f"must be the constant {shown(self.value)}, got {shown(value)}")
        return own_copy(self.value)


def list_advice(given: object) -> str:
    """Say how what holds several values, and is no list, becomes one."""
    if isinstance(given, set | frozenset):
        return "write sorted(...): a set has another order in each process"
    if hasattr(given, "tolist"):
        return "write ....tolist(), as in np.logspace(-4, -1, 4).tolist()"
    return "write list(...)"


def _identity(value: Value) -> str:
    """Tell True from 1 and 1 from 1.0, which Python's == doesn't."""
    return json.dumps(value, sort_keys=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
