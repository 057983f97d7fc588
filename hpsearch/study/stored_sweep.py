"""The sweep of a study, from what its journal says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpsearch.sweep.sweep import Sweep

__all__ = ["stored_sweep"]


def stored_sweep(record: Mapping[str, Any]) -> Sweep:
    """Give the sweep that a study was created with.

    Args:
        record: What was known of the study before it ran.
    """
    return Sweep.from_json(record["sweep"])
