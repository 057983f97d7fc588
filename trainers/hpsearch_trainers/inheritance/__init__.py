"""Weights that a child takes from its parent, whose network may differ.

`inherit` fills the child's network. If both architectures are known, it does so layer by layer, so that the child
computes what the parent does wherever possible; otherwise by names and shapes.
"""

from __future__ import annotations

from hpsearch_trainers.inheritance.inheriting import FATES, Inherited, inherit

__all__ = ["FATES", "Inherited", "inherit"]
