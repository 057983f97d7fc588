"""What trying trainers as lanes came to, for all that this process trains: once for each shape and code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from hpsearch_trainers.lanes.passes import Recorded
from hpsearch_trainers.lanes.probe import check_pack
from hpsearch_trainers.trainer import Trainer

__all__ = ["ProbeResult", "probe_result"]

_MOST = 256
"""Verdicts that are kept: of more, those that were tried first are tried again."""
_MOST_RECORDED = 16
"""Of these, the last ones whose recordings are kept, too."""

_results: dict[Hashable, ProbeResult] = {}


@dataclass(slots=True)
class ProbeResult:
    """What was found of a shape and code."""

    shares: Mapping[int, float]
    """As `check_pack` gives them."""
    recordings: dict[Hashable, Recorded | None]
    """What was recorded where it was tried, and by packs of that shape since."""


def probe_result(
    kind: Hashable,
    trainer: Trainer,
    most: int,
    recordings: dict[Hashable, Recorded | None],
    around: Callable[[], AbstractContextManager[object]],
) -> ProbeResult:
    """Return what `check_pack` finds, or found for another of this kind, if it was that many lanes are quicker.

    Args:
        kind: Shape and code of the trainer.
        trainer: The first one of the kind.
        most: Lanes of the largest pack.
        recordings: Where packs of this shape record, unless others of it have recorded already.
        around: Gives what surrounds a try.

    Raises:
        NotFusible: A bit differs, or they can't be fused.
    """
    key = (kind, most, _ways())
    result = _results.get(key)
    if result is None:
        with around():
            result = ProbeResult(check_pack(trainer, most, recordings), recordings)
        if result.shares.get(most, 0.0) < 1:  # else, perhaps, the machine had other work just then
            _results[key] = result
        while len(_results) > _MOST:
            del _results[next(iter(_results))]
        for kept_result in [*_results.values()][:-_MOST_RECORDED]:
            kept_result.recordings = {}
    return result


def _ways() -> Hashable:
    """Return what decides how torch computes, beside what it computes."""
    precision = None
    with contextlib.suppress(RuntimeError):  # it was set by both of torch's interfaces
        precision = torch.get_float32_matmul_precision()
    return (
        (torch.get_default_dtype(), torch.get_deterministic_debug_mode(), torch.backends.mkldnn.enabled, precision),
        sys.float_info.min / 2 == 0,  # whether numbers that small are taken for zero
    )
