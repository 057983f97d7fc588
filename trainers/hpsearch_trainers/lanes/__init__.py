"""Many trials on one worker: trainers as lanes of one computation, with the bits of each trained alone."""

from __future__ import annotations

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.fuser import Fuser, Stepped
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.probe import check_pack
from hpsearch_trainers.lanes.shape_key import shape_key

__all__ = ["Fuser", "NotFusible", "Pack", "Stepped", "check_pack", "shape_key"]
