"""Settings outside the sweep that affect bits; they stay as they were when the study was created."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hpsearch.sweep.sweep import Sweep

__all__ = ["bits_notes", "bits_of"]


def bits_of(sweep: Sweep) -> dict[str, str]:
    """Return what a new study records of it."""
    # With it a product of matrices doesn't depend on where in memory they lie: lanes have the bits of each alone.
    return {} if sweep.trainable is None else {"mkl_cbwr": os.environ.get("MKL_CBWR", "AUTO")}


def bits_notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Return a note if the environment differs from the study's.

    Args:
        record: The study's record.
    """
    kept, asked = record.get("mkl_cbwr"), os.environ.get("MKL_CBWR")
    if kept is not None and asked not in (None, kept):
        yield (
            f"MKL_CBWR={kept} stays as the study began with, though the environment has {asked}: trials would go on to "
            "other last digits with another one; for that, begin a new study"
        )
