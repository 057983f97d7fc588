"""Errors that say why trainers can't be fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpsearch_trainers.trainer import Trainer


class NotFusible(Exception):
    """A trainer or a pack can't be fused. This is not a user's error: it runs alone, with the same results.

    Args:
        reason: The reason, worded to complete "runs alone: ...".
        trainers: The trainers of the pack that the reason applies to; empty if unknown.
    """

    def __init__(self, reason: str, trainers: Sequence[Trainer] = ()) -> None:
        super().__init__(reason)
        self.trainers = trainers


class DependsOnPlace(NotFusible):
    """A trainer's results depend on its position among the lanes."""
