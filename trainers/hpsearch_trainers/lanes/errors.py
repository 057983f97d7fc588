"""Why trainers can't be trained as lanes of one computation."""

from __future__ import annotations

__all__ = ["DependsOnPlace", "NotFusible"]


class NotFusible(Exception):
    """What keeps a trainer, or a pack of them, from being fused, in words that complete "runs alone: ...".

    Nobody's mistake: a trainer that can't be a lane runs alone, with the same results.
    """


class DependsOnPlace(NotFusible):
    """What trainers of a shape come to depends on their place among the lanes: none of that shape is fused."""
