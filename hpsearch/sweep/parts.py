"""The parts of a sweep besides its space: metric, resources, scaling, parallel, limits, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import HOW, AtLeast, Count, Seconds, Settings
from hpsearch.objective import Metric
from hpsearch.searchers.settings import Search
from hpsearch.sweep.parallel import Parallel

__all__ = ["SECTIONS", "Checkpoints", "Limits", "MaxFailures", "Metric", "Parallel", "Resources", "Scaling", "Search"]

_LANES = 16
"""A core is busy with so many small networks: more of them gain nothing."""

MaxFailures = Count | Literal["auto", "none"]


@dataclass(frozen=True)
class Resources(Settings):
    """What the sweep may use. How many workers there are changes no result; what each has may."""

    workers: Annotated[Count | None, HOW] = None
    """Workers in all; none: as many as fit. Their number changes no result while each trial has one, but
    under `asha`, `pasha`, `median` and `pbt`."""
    cpus_per_worker: Count = 1
    """CPUs that a worker reserves; also torch's threads, which change bits."""
    gpus_per_worker: Annotated[float, AtLeast(0)] = 0
    """GPUs of each; a fraction shares a GPU."""
    workers_per_trial: Annotated[Count, HOW] = 1
    """Workers that train a trial together, at least: it starts when so many are free."""
    max_workers_per_trial: Annotated[Count | None, HOW] = None
    """Workers that a trial may get while nothing else can use them; none: `workers_per_trial`, so none widens."""
    elastic: Annotated[bool, HOW] = True
    """`false`: every trial runs on `workers_per_trial`, whatever `max_workers_per_trial` says."""
    fresh_process: Annotated[bool, HOW] = False
    """`true`: each segment runs in a worker process that ran nothing before, [so that trials share
    nothing](trainables.md#what-trials-share). It costs the start of a process, with torch, per segment. On Ray only; a
    script has its own process anyway."""
    trials_per_worker: Annotated[Count | Literal["auto"], HOW] = 1
    """Trials that a worker trains beside each other, [as lanes of one computation](lanes.md), where the trainable is a
    `Trainer`; `auto`: 16 where a worker has one CPU and no GPU, else 1. It changes no more of a result than `workers`
    does. With `max_workers_per_trial` the trials that are left may get several workers each, once they are fewer than
    these."""
    fuse: Literal["auto", "rounding"] = "auto"
    """`auto`: trials are trained as one computation where each has the bits that it has alone. `rounding`: one is
    always of `trials_per_worker` trials, with [fewer calls of torch](lanes.md#rounding), so that results depend on that
    number, and on nothing else of how the sweep is run; where a worker has a GPU, there are lanes [in this way
    alone](lanes.md#on-a-gpu)."""

    def check(self) -> None:
        """Check that the widths fit each other, and that a worker's GPUs can be had."""
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
        """Check that nothing else asks for whole workers."""
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
        """Trials that a worker trains beside each other, at most."""
        if self.trials_per_worker != "auto":
            return self.trials_per_worker
        whole = self.cpus_per_worker > 1 or self.gpus_per_worker > 0 or self.workers_per_trial > 1 or self.fresh_process
        return 1 if whole else _LANES

    @property
    def widest(self) -> int:
        """Workers that a trial may get."""
        return (self.max_workers_per_trial or self.workers_per_trial) if self.elastic else self.workers_per_trial


@dataclass(frozen=True)
class Scaling(Settings):
    """How batch and rate follow the number of workers of a trial, and when more workers do harm.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2. A Trainer keeps to it;
    a trainable with a loop of its own finds it as `trial.scaling`.
    """

    batch: Literal["global", "per_worker"] = "global"
    """`global`: the batch is divided among the workers, so that their number only changes how long it takes.
    `per_worker`: each has a batch of its own, so the global one grows with them, and the result is another."""
    lr: Literal["linear", "sqrt", "none"] | None = None
    """What the learning rate is multiplied by when the global batch is multiplied by k: `linear` k, `sqrt` its square
    root, `none` 1. Left out: `sqrt` for Adam and its kin, RMSprop, Adadelta, Adafactor and Muon; `none` for Adagrad and
    Rprop; `linear` for the others. Nothing else of the optimizer is changed, its betas neither."""
    warmup_epochs: Annotated[float, AtLeast(0)] = 5
    """Epochs in which the rate rises after the workers have become more, or from the start on several; 0 for at
    once."""
    max_global_batch: Count | None = None
    """Rows beyond which the global batch doesn't grow."""
    tolerance: Annotated[float, AtLeast(0)] = 0.1
    """With `per_worker`: a trial whose metric is worse than before it was widened, by more than this share of it, goes
    back."""

    def for_trainers(self) -> dict[str, Any]:
        """Give what a trial gets to see."""
        return {key: value for key, value in asdict(self).items() if key != "tolerance"}


@dataclass(frozen=True)
class Limits(Settings):
    """When to end, and when to give up."""

    max_time: Annotated[Seconds | None, HOW] = None
    """After so long the sweep ends (exit code 3). Former runs of the study count, a killed one up to its last event;
    pauses, and times in which nothing ran it, don't."""
    trial_timeout: Annotated[Seconds | None, HOW] = None
    """A trial that runs for longer, over all its attempts, is killed and failed. Attempts that were lost with their
    worker, or before `hpsearch retry`, don't count."""
    max_retries: Annotated[int, AtLeast(0), HOW] = 0
    """How often a trial that raised is tried again, from its newest checkpoint."""
    max_failures: Annotated[MaxFailures, HOW] = "auto"
    """Failed trials at which the sweep ends with the mistake (exit code 1). `auto`: where the first five all failed, or
    half of twenty or more that were tried; `none`: never."""
    patience: Annotated[Count | None, HOW] = None
    """The sweep ends (exit code 0) when so many trials in a row have ended, as complete, stopped or failed, without a
    better value than any before; none: it doesn't."""


@dataclass(frozen=True)
class Checkpoints(Settings):
    """Which checkpoints are kept, and how often a long segment writes one."""

    keep: Literal["best", "all"] = "best"
    """`best`: what a trial may still need, also one that has failed and may be retried, and the best trial's; `all`:
    every one that counts, each in a directory of its own."""
    every: Count | None = None
    """Iterations between checkpoints inside a segment; there is always one at its end, but where a function returns
    early."""


SECTIONS: Mapping[str, type[Settings]] = {
    "metric": Metric,
    "search": Search,
    "resources": Resources,
    "scaling": Scaling,
    "parallel": Parallel,
    "limits": Limits,
    "checkpoints": Checkpoints,
}
"""The keys of a sweep that hold settings, with what may stand inside."""
