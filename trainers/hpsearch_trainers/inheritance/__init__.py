"""Weight transfer from a parent's network to a child's, which may have another architecture.

`inherit` sets the child's weights. If both architectures are known, it works layer by layer, so that the child computes
the same function as the parent if possible. Otherwise it matches names and shapes.
"""

from __future__ import annotations

from hpsearch_trainers.inheritance.inheriting import FATES, Inherited, inherit

__all__ = ["FATES", "Inherited", "inherit"]
