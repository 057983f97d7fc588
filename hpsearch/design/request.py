"""The request of a design, stored in its folder, so that an interrupted design resumes with the same request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.config.settings import read_duration
from hpsearch.errors import DesignError

__all__ = ["BOUNDED", "DesignRequest", "read_limits", "read_seconds"]

BOUNDED = ("parameters", "flops", "latency_ms")
"""Quantities of the delivered network that `--limit` bounds; `flops` and `latency_ms` are for one row."""

LEAST_SECONDS = 5.0

_NAMES = ("source", "target", "goal", "limits", "seconds", "workers", "seed", "test_share")
"""Names in design.json of the fields of `DesignRequest`, in their order."""


@dataclass(frozen=True, slots=True)
class DesignRequest:
    """The request of a design.

    Raises:
        DesignError: It is invalid.
    """

    source: str
    """The data set: a path, absolute."""
    target: str | None = None
    """The column or array that is predicted; None: what the source's kind implies."""
    goal: str | None = None
    """A name of `scores.SCORES`; None: by the kind of target."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Upper bounds by name in `BOUNDED`."""
    seconds: float = 600.0
    """For all of it, from looking at the data to the test score."""
    workers: int | None = None
    """Trials at a time; None: as many as there are cores."""
    seed: int = 0
    test_share: float = 0.2
    """Fraction of the rows, which the search never sees."""

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds < math.inf:
            raise DesignError(f"--time must be at least {LEAST_SECONDS:g}s, got {self.seconds:g}s")
        if not 0 < self.test_share < 1:
            raise DesignError(f"--test-share must be between 0 and 1, got {self.test_share:g}")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dict(zip(_NAMES, astuple(self), strict=True))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DesignRequest:
        """Read back what `to_json` gave."""
        return cls(*(values[name] for name in _NAMES))

    def with_seconds(self, seconds: float | None) -> DesignRequest:
        """Return it with another time; None keeps the time."""
        return self if seconds is None else replace(self, seconds=seconds)


def read_seconds(text: str) -> float:
    """Read a time such as 90s or 10m.

    Raises:
        DesignError: It is none.
    """
    try:
        return read_duration(float(text) if text.replace(".", "", 1).isdecimal() else text, ())
    except InvalidKey as error:
        raise DesignError(f"--time {text}: {error.problem}") from None


def read_limits(values: Sequence[str]) -> dict[str, float]:
    """Parse limits such as `parameters=1e6`.

    Raises:
        DesignError: One is unknown, appears twice, or isn't a number above 0.
    """
    limits: dict[str, float] = {}
    for item in values:
        name, equals, text = (part.strip() for part in item.partition("="))
        if name not in BOUNDED or not equals:
            raise DesignError(
                f"--limit {item}: must be NAME=NUMBER, and NAME one of {', '.join(BOUNDED)}; {nearest(name, BOUNDED)}"
            )
        if name in limits:
            raise DesignError(f"--limit {item}: {name} must be given once")
        try:
            limits[name] = float(text.replace("_", ""))
        except ValueError:
            limits[name] = math.nan
        if not 0 < limits[name] < math.inf:
            raise DesignError(f"--limit {item}: must be a number above 0, got {text!r}")
    return limits
