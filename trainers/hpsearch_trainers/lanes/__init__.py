"""Fuse trials on one worker: each trainer is a lane of a joint computation.

Depending on the fuser, a lane's results equal those of the trainer alone bit for bit, or up to rounding.
"""

from __future__ import annotations

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.fuser import Fuser, Stepped
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.probe import check_pack, check_places
from hpsearch_trainers.lanes.rounding_fuser import RoundingFuser
from hpsearch_trainers.lanes.shape_key import shape_key
from hpsearch_trainers.lanes.storages import storages_of

__all__ = [
    "Fuser",
    "NotFusible",
    "Pack",
    "RoundingFuser",
    "Stepped",
    "check_pack",
    "check_places",
    "shape_key",
    "storages_of",
]
