"""The assignment of a worker: the segment that its trainable runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpsearch.objective import Objective
from hpsearch.trainable.metrics import names_reported

UNKNOWN_END = (
    "trial.iterations() and classes need to know the last iteration, but the sweep has no `max_iter`: set it inside "
    "`early_terminate` if the sweep has one, otherwise at the top level (or search(max_iter=...))"
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A segment to run. Its paths are valid on the machine that runs it."""

    number: int
    params: dict[str, Any]
    """Nested like the sweep's groups."""
    seed: int
    directory: str
    """Directory of the attempt, absolute."""
    start: int
    """Number of finished iterations."""
    end: int | None
    """Last iteration to run; None: no limit."""
    checkpoint: str | None
    """Checkpoint to start from, absolute."""
    objective: Objective
    """The metrics that every report must contain, and the targets at which the segment ends."""
    save_every: int | None
    """Iterations between checkpoints inside the segment."""
    rank: int = 0
    """Rank of this worker. Rank 0 reports and saves."""
    world_size: int = 1
    """Number of workers that run the segment."""
    scaling: dict[str, Any] = field(default_factory=dict)
    """The sweep's `scaling`: how batch size and learning rate depend on the number of workers."""
    parallel: dict[str, Any] = field(default_factory=dict)
    """The sweep's `parallel`: `strategy` and its options. Empty if the sweep has none."""
    parent: int | None = None
    """Number of the trial that this trial was forked from; None once this trial has its own checkpoint."""
    parent_checkpoint: str | None = None
    """Checkpoint of the parent, absolute. Equal to `checkpoint` if the fork starts at the parent's iteration."""
    changed: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Numeric parameters that differ between this trial and its parent: flat names to (parent's value, own value)."""

    resource: str | None = None
    """What the segment ends by if it has `cost_end`: `seconds`, or a metric."""
    cost: float = 0.0
    """Cost of the trial before the segment."""
    cost_end: float | None = None
    """The segment ends with the first report whose cost is at or above this; None: by its iterations."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that every report must contain."""
        return names_reported(self.objective.names, self.resource)

    @property
    def strategy(self) -> str:
        """How the workers synchronize."""
        return str(self.parallel.get("strategy", "allreduce"))

    @property
    def must_report(self) -> bool:
        """Whether the segment must report at least once: True if the trial has no report yet.

        A resumed trial may have nothing left to do.
        """
        return self.start == 0 or self.parent is not None

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metrics of a report reach the targets."""
        return self.objective.reaches(self.objective.reported(metrics))

    def to_json(self) -> dict[str, Any]:
        """Return the assignment as JSON, to pass it to a script; `from_json` reads it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "objective": self.objective.to_json()}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Assignment:
        """Return the assignment that `to_json` wrote."""
        return cls(**{**config, "objective": Objective.from_json(config["objective"])})

    def due(self, iteration: int) -> bool:
        """Return whether a checkpoint inside the segment is due at an iteration."""
        return self.save_every is not None and iteration % self.save_every == 0


def ignored_parallel(strategy: str) -> str:
    """Return the error message for a trainable that ignores the sweep's strategy."""
    return (
        f"the sweep has parallel.strategy {strategy}, but the trainable never read trial.parallel: derive it from "
        "hpsearch_trainers.Trainer, let it do what trial.parallel says, or take the strategy out of the sweep"
    )


def ignored_checkpoint(trial: int, start: int) -> str:
    """Return the error message for a resumed trial that ignores its checkpoint."""
    return (
        f"trial {trial} resumes from its checkpoint at iteration {start}, but reported without reading "
        "trial.checkpoint and without trial.iterations(): load trial.checkpoint before the loop, and loop over "
        "trial.iterations(); or report without a checkpoint: then each promotion starts from zero"
    )
