"""Constraints on what trials report: they are judged after the training, where those of the space need none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpsearch.config.checks import InvalidKey, number, shown, text

__all__ = ["OutcomeConstraint"]

_FORM = re.compile(r"(?P<metric>\S.*?)\s*(?P<sign><=|>=|==|<|>|=)\s*(?P<bound>\S+)")
_FORM_TOLD = "must be a reported metric, <= or >=, and a number, such as latency_ms <= 20"


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """A bound on a reported metric."""

    metric: str
    """A key of the mapping that the trainable reports."""
    bound: float
    """Finite."""
    most: bool
    """The metric may be no more than the bound; False: no less."""

    @classmethod
    def parse(cls, given: object) -> OutcomeConstraint:
        """Read `latency_ms <= 20`.

        Raises:
            InvalidKey: It isn't of this form.
        """
        said = text(given, ()).strip()
        found = _FORM.fullmatch(said)
        if found is None:
            raise InvalidKey((), f"{_FORM_TOLD}, got {shown(said)}")
        if found["sign"] not in ("<=", ">="):
            raise InvalidKey((), f"{_FORM_TOLD}, got {shown(said)}", f"write <= or >= for {found['sign']}")
        metric = found["metric"]
        if "<" in metric or ">" in metric:
            raise InvalidKey((), f"{_FORM_TOLD}, got {shown(said)}", "write two constraints for two bounds")
        if _is_number(metric):
            raise InvalidKey((), f"{_FORM_TOLD}, got {shown(said)}", "write the metric first")
        try:
            bound = number(float(found["bound"]), ())
        except (ValueError, InvalidKey):
            raise InvalidKey((), f"{_FORM_TOLD}, got {shown(said)}", "the bound must be a finite number") from None
        return cls(metric, bound, found["sign"] == "<=")

    def excludes(self, other: OutcomeConstraint) -> bool:
        """Say whether no value keeps both."""
        if self.metric != other.metric or self.most == other.most:
            return False
        most, least = (self, other) if self.most else (other, self)
        return most.bound < least.bound

    def excess(self, value: float) -> float:
        """Say by how much of the bound a value breaks it, and by less than 0 or 0 where it doesn't; NaN for NaN.

        A share of the bound, so that what is measured in bytes weighs no more than what is measured in seconds; the
        difference itself where the bound is 0.
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
