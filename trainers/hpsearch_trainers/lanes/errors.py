"""Why trainers can't be trained as lanes of one computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpsearch_trainers.trainer import Trainer


class NotFusible(Exception):
    """What keeps a trainer, or a pack of them, from being fused, in words that complete "runs alone: ...".

    Nobody's mistake: a trainer that can't be a lane runs alone, with the same results.

    Args:
        reason: The words.
        trainers: Those of the pack that the reason applies to; none: it isn't known which.
    """

    def __init__(self, reason: str, trainers: Sequence[Trainer] = ()) -> None:
        super().__init__(reason)
        self.trainers = trainers


class DependsOnPlace(NotFusible):
    """What a trainer comes to depends on its place among the lanes."""
