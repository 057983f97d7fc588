"""What a trainable is to run, in terms of the machine that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpsearch.objective import Objective

__all__ = ["UNKNOWN_END", "Assignment", "ignored_checkpoint", "ignored_parallel"]

UNKNOWN_END = (
    "trial.iterations(), by which classes are stepped too, must know where to end, but the sweep names no `max_iter`: "
    "set it at the top level (or search(max_iter=...)), or inside `early_terminate` where there is one"
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a trainable is to run, in terms of the machine that runs it."""

    number: int
    params: dict[str, Any]
    """Nested as the sweep's groups are."""
    seed: int
    directory: str
    """The attempt's own directory, absolute."""
    start: int
    """Iterations that are done."""
    end: int | None
    """Last iteration to run."""
    checkpoint: str | None
    """The checkpoint to start from, absolute."""
    objective: Objective
    """Says what every report must hold, and where the segment ends because a report has reached the targets."""
    save_every: int | None
    """Iterations between checkpoints inside the segment."""
    rank: int = 0
    """This worker's among those that run the segment; rank 0 reports and saves."""
    world_size: int = 1
    """Workers that run the segment."""
    scaling: dict[str, Any] = field(default_factory=dict)
    """How batch and rate follow the number of workers, as the sweep has it."""
    parallel: dict[str, Any] = field(default_factory=dict)
    """How the workers train it together: `strategy`, and what else the sweep says; empty where it says nothing."""
    parent: int | None = None
    """The trial that this one is forked from, where it begins as its fork: without a checkpoint of its own."""
    parent_checkpoint: str | None = None
    """That trial's checkpoint, absolute. Where the fork goes on at an iteration, `checkpoint` is the same."""
    changed: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The numbers among its parameters that differ from those of the trial that saved `parent_checkpoint`, by flat
    name: that trial's and its own."""

    @property
    def strategy(self) -> str:
        """How the workers train it together."""
        return str(self.parallel.get("strategy", "allreduce"))

    @property
    def must_report(self) -> bool:
        """Whether it has no report yet: one that is continued may find that it has nothing left to do."""
        return self.start == 0 or self.parent is not None

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Say whether a report reaches the targets."""
        return self.objective.reaches(self.objective.reported(metrics))

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON, for a script; `from_json` reads it back."""
        facts = {known.name: getattr(self, known.name) for known in fields(self)}
        return {**facts, "objective": self.objective.to_json()}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Assignment:
        """Read back what `to_json` gave."""
        return cls(**{**given, "objective": Objective.from_json(given["objective"])})

    def due(self, iteration: int) -> bool:
        """Say whether a checkpoint inside the segment is due at this iteration."""
        return self.save_every is not None and iteration % self.save_every == 0


def ignored_parallel(strategy: str) -> str:
    """Say that a trainable trains as it pleases where the sweep names a strategy."""
    return (
        f"the sweep has parallel.strategy {strategy}, but the trainable never looked at trial.parallel: derive it from "
        "hpsearch_trainers.Trainer, let it do what trial.parallel says, or take the strategy out of the sweep"
    )


def ignored_checkpoint(trial: int, start: int) -> str:
    """Say that a trial trains and draws as in its first segment where it should go on."""
    return (
        f"trial {trial} goes on from its checkpoint at iteration {start}, but reported without a look at "
        "trial.checkpoint and without trial.iterations(): load trial.checkpoint before the loop, and loop over "
        "trial.iterations(); or report without a checkpoint: then each promotion starts from zero"
    )
