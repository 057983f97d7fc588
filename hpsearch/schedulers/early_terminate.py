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
    """What a sweep may expect of a scheduler."""

    several_goals: bool = False
    """It ranks trials by `Objective.rank`, so that several metrics may decide."""
    outcome_constraints: bool = False
    """It ranks trials by the objective alone, so that reported metrics may be constrained."""
    forks: bool = False
    """It forks trials, so that the searcher must explore."""
    newest: bool = False
    """It compares the newest reports of trials, so that `metric.scope` must be `last`."""
    in_order: bool = False
    """Its decisions don't depend on completion order."""
    endless: bool = False
    """It creates trials until something else ends the sweep: `run_cap`, an exhausted searcher, or a limit."""
    live: bool = False
    """It stops trials while they run, by what they report."""

    def unsupported_key(self, objective: Objective) -> str | None:
        """Return the key of a sweep that the scheduler can't serve, None where it serves all of the objective."""
        if objective.several and not self.several_goals:
            return "metric"
        return "outcome_constraints" if objective.constraints and not self.outcome_constraints else None


@dataclass(frozen=True)
class EarlyTerminate(Settings, ABC):
    """A frozen dataclass whose fields are the keys of the section."""

    kind: ClassVar[str]
    """Its `type` in a sweep file."""
    raisable: ClassVar[tuple[str, ...]] = ()
    """Fields that may be raised in a study that has begun."""
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities()
    course: ClassVar[str] = "one course of it: who goes on depends on values, and on who is first"
    """What `hpsearch plan` shows of an endless scheduler, in words."""

    max_iter: Count
    """Iterations of the best trials."""

    @property
    def least_trials(self) -> int:
        """The least `run_cap` that it accepts."""
        return 1

    @abstractmethod
    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler.

        Args:
            objective: Ranks trials.
            run_cap: How many trials may be created in all.

        Raises:
            SweepError: Its numbers leave nothing to run.
        """

    @abstractmethod
    def summary(self) -> str:
        """Return a short description: `"Hyperband from 1 to 27 iterations by 3"`."""

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Return those of these settings that raise the stored ones of a study, whose bound on trials is `run_cap`."""
        return {}

    def as_stored(self, stored: Self) -> Self:
        """Return the stored settings where both mean the same, these settings otherwise."""
        return self

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return these settings with some of them changed."""
        return replace(self, **settings)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON; `early_terminate_from_json` reads them back."""
        return {"type": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Absent(EarlyTerminate):
    """The stored settings of a third party's scheduler that can't be imported, or takes other settings now.

    They are enough to show the study, but not to run it.
    """

    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(several_goals=True, outcome_constraints=True)

    stored: str
    """The return value of `to_json`, as JSON."""
    problem: str
    """Why it can't be imported."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Raise an error.

        Raises:
            SweepError: Always; it names what is missing.
        """
        raise SweepError(
            f"the study's scheduler can't be had, so the study can be looked at but not run: {self.problem}"
        )

    def summary(self) -> str:
        """Return its import path."""
        return str(self.to_json()["type"])

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Return these settings with some of them changed."""
        return replace(self, stored=json.dumps({**self.to_json(), **settings}))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as they were stored."""
        stored: dict[str, Any] = json.loads(self.stored)
        return stored
