"""Trainables that come with hpsearch, and the `Trainer` behind them; they know of a trial, and nothing of search."""

from __future__ import annotations

from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

__all__ = ["Parts", "Trainer"]
