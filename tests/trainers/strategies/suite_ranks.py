"""What ranks of the suite do, in processes in which the strategy of docs/extending.md is one of the strategies."""

from __future__ import annotations

from hpsearch_trainers.strategies import STRATEGIES
from tests.trainers.strategies.documented import documented_strategy
from tests.trainers.strategies.ranks import around, changes, disturbed, own_steps, trains, validates_again, working

__all__ = ["around", "changes", "disturbed", "own_steps", "trains", "validates_again", "working"]

STRATEGIES["compressed_allreduce"] = documented_strategy()
