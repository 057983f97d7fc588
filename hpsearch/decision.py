"""What a scheduler made of a trial: plain data, which the journal keeps beside the event that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Decision"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler made of a trial."""

    trial: int
    action: Literal["promote", "stop", "complete"]
    reason: str
    """In words, never empty: `"rung 2: 7th of 9, top 3 go on"`."""
