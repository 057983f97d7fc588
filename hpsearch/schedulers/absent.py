"""The settings of a stored sweep whose scheduler can't be had here: enough to show the study, and not to run it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from hpsearch.errors import SweepError
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities

__all__ = ["Absent"]


@dataclass(frozen=True)
class Absent(EarlyTerminate):
    """Stands for a scheduler of a third party that can't be imported, or takes other settings by now."""

    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(several_goals=True, outcome_constraints=True)

    stored: str
    """What `to_json` gave, as JSON."""
    problem: str
    """Why it can't be had."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Refuse.

        Raises:
            SweepError: Always; says what is missing.
        """
        raise SweepError(
            f"the study's scheduler can't be had, so the study can be looked at but not run: {self.problem}"
        )

    def summary(self) -> str:
        """Name it."""
        return str(self.to_json()["type"])

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Give these settings with some of them changed."""
        return replace(self, stored=json.dumps({**self.to_json(), **settings}))

    def to_json(self) -> dict[str, Any]:
        """Give the settings as they were stored."""
        stored: dict[str, Any] = json.loads(self.stored)
        return stored
