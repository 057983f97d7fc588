"""What sweeps that were stored by earlier versions mean where they don't say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BEFORE", "DRAWS"]

DRAWS = 2
"""Version of the draws and grids. A study that was drawn otherwise can't be resumed, so it is refused."""

BEFORE: Mapping[str, Any] = {
    "parallel": None,
    "search": {},
    "on_end": None,
    "outcome_constraints": (),
}
"""By key."""
