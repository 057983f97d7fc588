"""The `Trainer` and the built-in trainables of hpsearch. They depend on a trial, but not on the search."""

from __future__ import annotations

from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

__all__ = ["Parts", "Trainer"]
