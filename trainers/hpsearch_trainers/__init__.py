"""The `Trainer` and trainables that come with hpsearch. They know about one trial, not about the search."""

from __future__ import annotations

from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

__all__ = ["Parts", "Trainer"]
