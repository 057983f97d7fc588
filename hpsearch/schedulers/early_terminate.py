"""The settings of schedulers: the section `early_terminate` of a sweep."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from hpsearch.config.settings import Count, Settings
from hpsearch.errors import SweepError
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler


@dataclass(frozen=True, kw_only=True)
class SchedulerCapabilities:
    """The capabilities of a scheduler."""

    several_goals: bool = False
    """It ranks trials by `Objective.rank`, so it supports several metrics."""
    outcome_constraints: bool = False
    """It ranks trials only by the objective, so it supports outcome constraints."""
    forks: bool = False
    """It forks trials, so the searcher must implement `explore`."""
    newest: bool = False
    """It compares the newest reports of trials, so `metric.scope` must be `last`."""
    in_order: bool = False
    """Its decisions don't depend on completion order."""
    endless: bool = False
    """It creates trials until something else ends the sweep: `run_cap`, an exhausted searcher, or a limit."""
    live: bool = False
    """It stops running trials by their live reports."""

    def unsupported_key(self, objective: Objective) -> str | None:
        """Return the key of the objective that the scheduler doesn't support; None if it supports all of it."""
        if objective.several and not self.several_goals:
            return "metric"
        return "outcome_constraints" if objective.constraints and not self.outcome_constraints else None


@dataclass(frozen=True)
class EarlyTerminate(Settings, ABC):
    """Base class of the settings of schedulers: a frozen dataclass whose fields are the keys of the section."""

    kind: ClassVar[str]
    """Its `type` in a sweep file."""
    raisable: ClassVar[tuple[str, ...]] = ()
    """Fields that may be raised when a study is extended."""
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities()
    course: ClassVar[str] = "one course of it: who goes on depends on values, and on who is first"
    """Description of an endless scheduler's plan in `hpsearch plan`."""

    max_iter: Count
    """Iterations of the best trials."""

    @property
    def least_trials(self) -> int:
        """Smallest `run_cap` that the scheduler accepts."""
        return 1

    @abstractmethod
    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler.

        Args:
            objective: Ranks trials.
            run_cap: Maximum number of trials.

        Raises:
            SweepError: With these settings, no trial would run.
        """

    @abstractmethod
    def summary(self) -> str:
        """Return a short description: `"Hyperband from 1 to 27 iterations by 3"`."""

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Return the settings that are higher than the stored ones of a study with this `run_cap`, by name."""
        return {}

    def as_stored(self, stored: Self) -> Self:
        """Return the stored settings if they are equivalent to these, otherwise these settings."""
        return self

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy of the settings with some of them changed."""
        return replace(self, **settings)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON; `early_terminate_from_json` reads them back."""
        return {"type": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Absent(EarlyTerminate):
    """Stored settings of a custom scheduler that can't be imported, or whose settings have changed since.

    With them, the study can be shown, but not run.
    """

    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(several_goals=True, outcome_constraints=True)

    stored: str
    """The return value of `to_json`, as JSON."""
    problem: str
    """Why the scheduler can't be imported or built."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Raise an error.

        Raises:
            SweepError: Always; the message contains `problem`.
        """
        raise SweepError(
            f"the study's scheduler can't be had, so the study can be looked at but not run: {self.problem}"
        )

    def summary(self) -> str:
        """Return the scheduler's import path."""
        return str(self.to_json()["type"])

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return these settings with some of them changed."""
        return replace(self, stored=json.dumps({**self.to_json(), **settings}))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as they were stored."""
        stored: dict[str, Any] = json.loads(self.stored)
        return stored
