"""What makes a study's numbers repeat to the bit, and notes on what doesn't."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hpsearch.sweep.parallel import STRATEGY
from hpsearch.sweep.sweep import Sweep


def bits_of(sweep: Sweep) -> dict[str, str]:
    """Return what a new study records of this process."""
    # With it, matrix products don't depend on memory alignment, so lanes and single trials give the same bits.
    return {} if sweep.trainable is None else {"mkl_cbwr": os.environ.get("MKL_CBWR", "AUTO")}


def bits_notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Return a note if the environment differs from the study's.

    Args:
        record: The study's record.
    """
    stored, here = record.get("mkl_cbwr"), os.environ.get("MKL_CBWR")
    if stored is not None and here not in (None, stored):
        yield (
            f"MKL_CBWR={stored} stays as the study began with, though the environment has {here}: trials would go on "
            "to other last digits with another one; for that, begin a new study"
        )


def gpu_notes(sweep: Sweep) -> list[str]:
    """Warn that results on a GPU aren't reproducible to the bit by default."""
    if not sweep.resources.gpus_per_worker or sweep.resources.fuse == "rounding":
        return []
    return [
        "resources.gpus_per_worker: on a GPU the same trial may end with other last digits each time, and tables may "
        "differ in them; torch.use_deterministic_algorithms(True) in the trainable makes most operations repeat"
    ]


def parallel_notes(sweep: Sweep) -> list[str]:
    """Return which strategies aren't reproducible."""
    asynchronous = sweep.strategies.asynchronous
    if not asynchronous:
        return []
    return [
        f"{STRATEGY} {', '.join(asynchronous)}: workers don't wait for each other, so the same trial gives other "
        "numbers each time; its row says asynchronous"
    ]
