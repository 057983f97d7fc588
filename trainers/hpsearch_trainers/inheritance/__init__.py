"""What a child takes over of its parent's weights, where the two networks may differ.

`inherit` fills the child's network: where both architectures are known, layer by layer, so that it computes what the
parent does wherever that is possible; else by names and shapes.
"""

from __future__ import annotations

from hpsearch_trainers.inheritance.inherited import FATES, Inherited
from hpsearch_trainers.inheritance.inheriting import inherit

__all__ = ["FATES", "Inherited", "inherit"]
