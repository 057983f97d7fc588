"""Notes on results on a GPU, before a sweep runs."""

from __future__ import annotations

from hpsearch.sweep.sweep import Sweep

__all__ = ["gpu_notes"]


def gpu_notes(sweep: Sweep) -> list[str]:
    """Warn that results on a GPU aren't reproducible to the bit, unless they are made so."""
    if not sweep.resources.gpus_per_worker or sweep.resources.fuse == "rounding":
        return []
    return [
        "resources.gpus_per_worker: on a GPU the same trial may end with other last digits each time, and tables may "
        "differ in them; torch.use_deterministic_algorithms(True) in the trainable makes most operations repeat"
    ]
