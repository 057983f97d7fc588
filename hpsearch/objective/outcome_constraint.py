"""Constraints on reported metrics. They are checked after training, unlike constraints of the space."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpsearch.config.checks import InvalidKey, number, shown, text

__all__ = ["OutcomeConstraint"]

_PATTERN = re.compile(r"(?P<metric>\S.*?)\s*(?P<sign><=|>=|==|<|>|=)\s*(?P<bound>\S+)")
_EXPECTED = "must be a reported metric, <= or >=, and a number, such as latency_ms <= 20"


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """A bound on a reported metric."""

    metric: str
    """A key of the mapping that the trainable reports."""
    bound: float
    """Finite."""
    most: bool
    """The bound is an upper bound; False: a lower bound."""

    @classmethod
    def parse(cls, value: object) -> OutcomeConstraint:
        """Parse a constraint such as `latency_ms <= 20`.

        Raises:
            InvalidKey: The value is not a constraint.
        """
        constraint = text(value, ()).strip()
        problem = f"{_EXPECTED}, got {shown(constraint)}"
        match = _PATTERN.fullmatch(constraint)
        if match is None:
            raise InvalidKey((), problem)
        if match["sign"] not in ("<=", ">="):
            raise InvalidKey((), problem, f"write <= or >= for {match['sign']}")
        metric = match["metric"]
        if "<" in metric or ">" in metric:
            raise InvalidKey((), problem, "write two constraints for two bounds")
        if _is_number(metric):
            raise InvalidKey((), problem, "write the metric first")
        try:
            bound = number(float(match["bound"]), ())
        except (ValueError, InvalidKey):
            raise InvalidKey((), problem, "the bound must be a finite number") from None
        return cls(metric, bound, match["sign"] == "<=")

    def excludes(self, other: OutcomeConstraint) -> bool:
        """Return whether no value keeps both constraints."""
        if self.metric != other.metric or self.most == other.most:
            return False
        most, least = (self, other) if self.most else (other, self)
        return most.bound < least.bound

    def excess(self, value: float) -> float:
        """Return by how much a value exceeds the bound, relative to it; 0 or less if the constraint is kept.

        Relative, so that metrics in bytes and in seconds have the same weight; absolute if the bound is 0. NaN for NaN.
        """
        over = value - self.bound if self.most else self.bound - value
        return over / abs(self.bound) if self.bound else over

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.most else '>='} {repr(self.bound).removesuffix('.0')}"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
