"""What followed from an event: plain data, which the journal keeps beside the event."""

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
    """`withdraw`: its failure is revoked, and it runs again."""
    reason: str
    """In words, never empty: `"rung 2: 7th of 9, top 3 go on"`."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """What the scheduler plans from here on, if that changed."""

    total: tuple[int, int] | None
    """(trials, iterations when promotions resume) of the whole sweep; None if it is unbounded."""
    brackets: Mapping[int, Rungs] = field(default_factory=dict)
    """Those that changed."""


@dataclass(frozen=True, slots=True)
class Followed:
    """All that followed from one event."""

    decisions: Sequence[Decision] = ()
    plan: PlanChange | None = None
    """None where it stayed as it was."""
