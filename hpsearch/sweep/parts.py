"""The sections of a sweep: metric, resources, scaling, parallel, limits, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import HOW, AtLeast, Count, Seconds, Settings
from hpsearch.objective import Metric
from hpsearch.objective.repeats import Repeats
from hpsearch.searchers.base import Search
from hpsearch.sweep.parallel import Parallel

__all__ = [
    "SECTIONS",
    "Checkpoints",
    "Limits",
    "MaxFailures",
    "Metric",
    "Parallel",
    "Repeats",
    "Resources",
    "Scaling",
    "Search",
]

_LANES = 16
"""Number of lanes with `auto`. That many small networks keep a core busy; more do not help."""

MaxFailures = Count | Literal["auto", "none"]


@dataclass(frozen=True)
class Resources(Settings):
    """The resources of a sweep. The number of workers doesn't change results; the resources of each worker may."""

    workers: Annotated[Count | None, HOW] = None
    """Number of workers; none: as many as there is room for. Doesn't change results while each trial has one worker,
    except under `asha`, `pasha`, `median`, `bands` and `pbt`."""
    cpus_per_worker: Count = 1
    """CPUs that a worker reserves, and torch's threads, whose number changes bits."""
    gpus_per_worker: Annotated[float, AtLeast(0)] = 0
    """GPUs per worker; a fraction shares a GPU."""
    workers_per_trial: Annotated[Count, HOW] = 1
    """Workers that train a trial together, at least. It starts when that many are free."""
    max_workers_per_trial: Annotated[Count | None, HOW] = None
    """Workers that a trial may get while nothing else can use them; none: `workers_per_trial`, so no trial widens."""
    elastic: Annotated[bool, HOW] = True
    """`false`: every trial runs on `workers_per_trial`, whatever `max_workers_per_trial` is."""
    fresh_process: Annotated[bool, HOW] = False
    """`true`: each segment runs in a new worker process, [so that trials share
    nothing](trainables.md#what-trials-share). Costs a process start, with torch, per segment. Ray only; a script has
    its own process anyway."""
    trials_per_worker: Annotated[Count | Literal["auto"], HOW] = 1
    """Trials of a `Trainer` that a worker trains concurrently, [as lanes of one computation](lanes.md); `auto`: 16 if a
    worker has one CPU and no GPU, else 1. Changes results no more than `workers` does. With `max_workers_per_trial`,
    trials may get several workers each once fewer than these are left."""
    fuse: Literal["auto", "rounding"] = "auto"
    """`auto`: trials are trained as one computation if each gets the bits it has alone. `rounding`: a computation is
    always of `trials_per_worker` trials, with [fewer calls of torch](lanes.md#rounding), so that results depend on that
    number; [required](lanes.md#on-a-gpu) for lanes on a GPU."""

    def check(self) -> None:
        """Check that the numbers of workers, lanes and GPUs are consistent."""
        least, most, gpus = self.workers_per_trial, self.max_workers_per_trial, self.gpus_per_worker
        if most is not None and most < least:
            problem = f"must be at least workers_per_trial ({least}), got {most}"
            raise InvalidKey(("max_workers_per_trial",), problem)
        if self.workers is not None and self.workers < least:
            problem = f"must be at least workers_per_trial ({least}), got {self.workers}: a trial takes {least} at once"
            raise InvalidKey(("workers",), problem, "raise it, or lower workers_per_trial")
        if self.fuse == "rounding" and (self.trials_per_worker == "auto" or self.trials_per_worker < 2):
            problem = f"must be a number from 2 where fuse is rounding, got {self.trials_per_worker}"
            raise InvalidKey(("trials_per_worker",), problem, "say how many: results depend on it")
        if self.lanes > 1:
            self._check_lanes()
        if gpus > 1 and not float(gpus).is_integer():
            raise InvalidKey(("gpus_per_worker",), f"must be a fraction up to 1 or a whole number, got {gpus}")

    def _check_lanes(self) -> None:
        """Check that no other setting requires whole workers."""
        problem = f"must be 1 where {{}}, got {self.trials_per_worker}"
        if (least := self.workers_per_trial) > 1:
            needs = f"workers_per_trial is {least}, so that a trial has all of a worker"
            raise InvalidKey(("trials_per_worker",), problem.format(needs), "give max_workers_per_trial instead")
        if self.fresh_process:
            raise InvalidKey(("trials_per_worker",), problem.format("each segment has a fresh_process"))
        if self.cpus_per_worker > 1:
            has = f"cpus_per_worker is {self.cpus_per_worker}, as bits depend on the number of torch's threads"
            raise InvalidKey(("trials_per_worker",), problem.format(has), "lower cpus_per_worker: more workers fit")

    @property
    def lanes(self) -> int:
        """Maximum number of trials that a worker trains concurrently."""
        if self.trials_per_worker != "auto":
            return self.trials_per_worker
        is_exclusive = (
            self.cpus_per_worker > 1 or self.gpus_per_worker > 0 or self.workers_per_trial > 1 or self.fresh_process
        )
        return 1 if is_exclusive else _LANES

    @property
    def widest(self) -> int:
        """Maximum number of workers of a trial."""
        return (self.max_workers_per_trial or self.workers_per_trial) if self.elastic else self.workers_per_trial


@dataclass(frozen=True)
class Scaling(Settings):
    """How batch size and learning rate depend on the workers of a trial, and when a wider trial is rolled back.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2. A Trainer applies these
    settings; other trainables can read them as `trial.scaling`.
    """

    batch: Literal["global", "per_worker"] = "global"
    """`global`: the batch is divided among the workers, so their number changes only the duration. `per_worker`: each
    worker has its own batch, so the global batch grows with the workers, and the result changes."""
    lr: Literal["linear", "sqrt", "none"] | None = None
    """Factor of the learning rate when the global batch grows k times: `linear` k, `sqrt` its square root, `none` 1.
    Default: `sqrt` for Adam and related optimizers, RMSprop, Adadelta, Adafactor and Muon; `none` for Adagrad and
    Rprop; `linear` for others. Other settings, such as betas, stay."""
    warmup_epochs: Annotated[float, AtLeast(0)] = 5
    """Epochs over which the rate rises after a trial gets more workers, or starts on several; 0: at once."""
    max_global_batch: Count | None = None
    """Rows beyond which the global batch doesn't grow."""
    tolerance: Annotated[float, AtLeast(0)] = 0.1
    """With `per_worker`: a widened trial goes back if its metric is worse than before by more than this share."""

    def for_trainers(self) -> dict[str, Any]:
        """Return the settings for `trial.scaling`."""
        return {key: value for key, value in asdict(self).items() if key != "tolerance"}


@dataclass(frozen=True)
class Limits(Settings):
    """When a sweep or a trial ends, and how often trials are retried."""

    max_time: Annotated[Seconds | None, HOW] = None
    """Time after which the sweep ends (exit code 3). Earlier runs of the study count, a killed one up to its last
    event; pauses and times between runs don't."""
    trial_timeout: Annotated[Seconds | None, HOW] = None
    """A trial that runs longer, over all its attempts, is killed and fails. Attempts that were lost with their worker,
    or before `hpsearch retry`, don't count."""
    max_retries: Annotated[int, AtLeast(0), HOW] = 0
    """How often a trial that raised an exception is retried from its newest checkpoint."""
    max_failures: Annotated[MaxFailures, HOW] = "auto"
    """Failed trials at which the sweep ends with an error (exit code 1). `auto`: the first five all failed, or half of
    twenty or more, [without what the method learns to avoid](methods.md#failures-teach); `none`: never."""
    patience: Annotated[Count | None, HOW] = None
    """The sweep ends (exit code 0) when this many trials in a row ended (complete, stopped or failed) without a new
    best value; none: no patience limit."""


@dataclass(frozen=True)
class Checkpoints(Settings):
    """Which checkpoints are kept, and how often they are written within a segment."""

    keep: Literal["best", "all"] = "best"
    """`best`: checkpoints that a trial may still need (also a failed one, for a retry), and the best trial's; `all`:
    every one that counts, each in its own directory."""
    every: Count | None = None
    """Iterations between checkpoints inside a segment. There is always one at its end, unless a function returns
    early."""


SECTIONS: Mapping[str, type[Settings]] = {
    "metric": Metric,
    "search": Search,
    "repeats": Repeats,
    "resources": Resources,
    "scaling": Scaling,
    "parallel": Parallel,
    "limits": Limits,
    "checkpoints": Checkpoints,
}
"""The sections of a sweep, with their settings."""
