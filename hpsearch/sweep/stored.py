"""What sweeps that were stored by earlier versions mean where they don't say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpsearch.checks import shown
from hpsearch.space import FormerSpace, Space

__all__ = ["BEFORE", "BEFORE_KEYS", "space_of"]

BEFORE: Mapping[str, Any] = {
    "draws": FormerSpace.law,
    "scaling": {},
    "parallel": None,
    "search": {},
    "observers": ("tensorboard",),
    "on_end": None,
    "outcome_constraints": (),
}
"""By key."""
BEFORE_KEYS: Mapping[str, Mapping[str, Any]] = {"metric": {"scope": "last"}, "limits": {"max_failures": "none"}}
"""By section, then key."""


def space_of(law: object) -> type[Space]:
    """Give the kind of space whose draws follow a law."""
    for space in (Space, FormerSpace):
        if law == space.law:
            return space
    raise ValueError(f"draws must be {FormerSpace.law} or {Space.law}, got {shown(law)}")
