"""What a sweep says under `early_terminate`: which scheduler, and its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, Self

from hpsearch._sweep_checks import at_least
from hpsearch.schedulers.base import Scheduler
from hpsearch.trial import Goal

__all__ = ["EarlyTerminate", "check_integer"]


class EarlyTerminate(ABC):
    """A frozen dataclass whose fields are the keys of a sweep file, checked when it is built.

    An integer, an integer or None, and a `Literal` of words are read from a file by their types.
    """

    kind: ClassVar[str]
    """Its `type` in a sweep file."""
    raisable: ClassVar[tuple[str, ...]] = ()
    """Fields that may be raised of a study that has begun."""

    max_iter: int
    """Most iterations that a trial may get."""

    @abstractmethod
    def scheduler(self, goal: Goal, run_cap: int | None) -> Scheduler:
        """Build the scheduler.

        Args:
            goal: Which values are best.
            run_cap: How many trials may be created in all.

        Raises:
            SweepError: Its numbers leave nothing to run.
        """

    @abstractmethod
    def summary(self) -> str:
        """Say in some words what it does: `"Hyperband from 1 to 27 iterations by 3"`."""

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Give those of these settings that raise a stored study's, whose bound on trials is `run_cap`."""
        return {}

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Give these settings with some of them changed."""
        return replace(self, **settings)  # type: ignore[type-var]

    def to_json(self) -> dict[str, Any]:
        """Give the settings as JSON; `early_terminate_from_json` reads them back."""
        return {"type": self.kind, **asdict(self)}  # type: ignore[call-overload]


def check_integer(settings: EarlyTerminate, key: str, lowest: int) -> None:
    """Check an integer field, and keep it as a plain int; None is left as it is."""
    value = getattr(settings, key)
    if value is not None:
        object.__setattr__(settings, key, at_least(value, lowest, (key,)))
