"""Why trainers can't be trained as lanes of one computation."""

from __future__ import annotations

__all__ = ["NotFusible"]


class NotFusible(Exception):
    """What keeps a trainer, or a pack of them, from being fused, in words that complete "runs alone: ...".

    Nobody's mistake: a trainer that can't be a lane runs alone, with the same results.
    """
