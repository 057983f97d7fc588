"""Decisions that follow from an event: plain data that the journal stores with the event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Rungs = Sequence[tuple[int | None, int | None]]
"""(Last iteration, number of trials) of each rung of a bracket, as in `RungView`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The scheduler's decision about a trial."""

    trial: int
    action: Literal["promote", "stop", "complete", "withdraw"]
    """`withdraw`: the trial's failure is revoked, and the trial runs again."""
    reason: str
    """The reason as text, never empty: `"rung 2: 7th of 9, top 3 go on"`."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A change of the scheduler's plan."""

    total: tuple[int, int] | None
    """(trials, iterations when promotions resume) of the whole sweep; None if it is unbounded."""
    brackets: Mapping[int, Rungs] = field(default_factory=dict)
    """The rungs of the brackets whose plan changed."""


@dataclass(frozen=True, slots=True)
class Followed:
    """All decisions and plan changes that follow from one event."""

    decisions: Sequence[Decision] = ()
    plan: PlanChange | None = None
    """None if the plan didn't change."""
