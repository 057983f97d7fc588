"""The parts of a sweep besides its space: metric, early termination, resources, limits, checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hpsearch._sweep_checks import InvalidKey, at_least, boolean, number, one_of, text
from hpsearch.schedulers.brackets import Variant, rung_count
from hpsearch.trial import Goal

__all__ = ["Checkpoints", "Hyperband", "Limits", "Metric", "Resources", "Scaling", "SuccessiveHalving"]

Keep = Literal["best", "all"]


def _int(part: object, key: str, lowest: int) -> None:
    """Check an integer of a part, and keep it as a plain int."""
    object.__setattr__(part, key, at_least(getattr(part, key), lowest, (key,)))


def _optional_int(part: object, key: str, lowest: int) -> None:
    if getattr(part, key) is not None:
        _int(part, key, lowest)


@dataclass(frozen=True)
class Metric:
    """What makes one trial better than another."""

    name: str
    """A key of the mapping that the trainable reports."""
    goal: Goal = "minimize"

    def __post_init__(self) -> None:
        text(self.name, ("name",))
        one_of(self.goal, get_args(Goal), ("goal",))


@dataclass(frozen=True)
class SuccessiveHalving:
    """One bracket: all trials run `min_iter` iterations, the best 1/eta of them eta times as many, and so on.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    max_iter: int
    """Iterations of the last rung."""
    min_iter: int = 1
    """Iterations of the first rung."""
    eta: int = 3
    trials: int | None = None
    """Trials that start in the bracket; None: as many as leave one for the last rung, eta**(rungs - 1)."""

    def __post_init__(self) -> None:
        _check_rungs(self)
        _optional_int(self, "trials", 1)

    @property
    def rungs(self) -> int:
        """Number of rungs."""
        return rung_count(self.min_iter, self.max_iter, self.eta)


@dataclass(frozen=True)
class Hyperband:
    """Rounds of brackets that trade the number of trials for how early they are judged.

    Li et al., JMLR 18 (2018), Algorithm 1.
    """

    max_iter: int
    """Iterations that a trial may get: R."""
    min_iter: int = 1
    """Iterations of the first rung of the widest bracket."""
    eta: int = 3
    variant: Variant = "paper"
    """Trials per bracket: `paper` rounds up as Algorithm 1 does (81, 34, 15, 8, 5 for R=81), `table` down
    as the table of its first version does (81, 27, 9, 6, 5)."""
    brackets: int | None = None
    """Brackets to run in all, over all rounds; None: one round, or as many as `run_cap` fills."""

    def __post_init__(self) -> None:
        _check_rungs(self)
        one_of(self.variant, get_args(Variant), ("variant",))
        _optional_int(self, "brackets", 1)

    @property
    def rungs(self) -> int:
        """Rungs of the widest bracket, which is also the number of brackets in a round."""
        return rung_count(self.min_iter, self.max_iter, self.eta)


def _check_rungs(given: SuccessiveHalving | Hyperband) -> None:
    _int(given, "max_iter", 1)
    _int(given, "min_iter", 1)
    _int(given, "eta", 2)
    if given.min_iter > given.max_iter:
        problem = f"must be at most max_iter ({given.max_iter}), got {given.min_iter}"
        raise InvalidKey(("min_iter",), problem)


@dataclass(frozen=True)
class Resources:
    """What the sweep may use. How many workers there are changes no result; what each has may."""

    workers: int | None = None
    """None: as many as fit."""
    cpus_per_worker: int = 1
    """Also the number of torch's threads, which changes bits."""
    gpus_per_worker: float = 0
    """A fraction shares a GPU."""
    workers_per_trial: int = 1
    """Workers that train a trial together, at least."""
    max_workers_per_trial: int | None = None
    """Workers that a trial may get while there is nothing else to run; None: `workers_per_trial`, so none widens."""
    elastic: bool = True
    """False: every trial runs on `workers_per_trial`, whatever the others say."""
    fresh_process: bool = False
    """Each segment runs in a worker process that ran nothing before."""

    def __post_init__(self) -> None:
        _optional_int(self, "workers", 1)
        _int(self, "cpus_per_worker", 1)
        _int(self, "workers_per_trial", 1)
        _optional_int(self, "max_workers_per_trial", 1)
        for key in ("elastic", "fresh_process"):
            object.__setattr__(self, key, boolean(getattr(self, key), (key,)))
        self._check_widths()
        gpus = number(self.gpus_per_worker, ("gpus_per_worker",))
        object.__setattr__(self, "gpus_per_worker", gpus)
        if gpus < 0 or (gpus > 1 and not gpus.is_integer()):
            raise InvalidKey(
                ("gpus_per_worker",),
                f"must be a fraction up to 1 or a whole number, got {gpus}",
            )

    @property
    def widest(self) -> int:
        """Workers that a trial may get."""
        return (self.max_workers_per_trial or self.workers_per_trial) if self.elastic else self.workers_per_trial

    def _check_widths(self) -> None:
        least, most = self.workers_per_trial, self.max_workers_per_trial
        if most is not None and most < least:
            problem = f"must be at least workers_per_trial ({least}), got {most}"
            raise InvalidKey(("max_workers_per_trial",), problem)
        if self.workers is not None and self.workers < least:
            problem = f"must be at least workers_per_trial ({least}), got {self.workers}: a trial takes {least} at once"
            raise InvalidKey(("workers",), problem, "raise it, or lower workers_per_trial")


@dataclass(frozen=True)
class Scaling:
    """How batch and rate follow the number of workers of a trial, and when more workers do harm.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2. A Trainer keeps to it;
    a trainable with a loop of its own finds it as `trial.scaling`.
    """

    batch: Literal["global", "per_worker"] = "global"
    """`global`: the batch is divided among the workers; `per_worker`: each has one, and the global batch grows."""
    lr: Literal["linear", "sqrt", "none"] | None = None
    """What the rate is multiplied by when the global batch is; None: what suits the optimizer."""
    warmup_epochs: float = 5
    """Epochs in which the rate rises after the width has grown."""
    max_global_batch: int | None = None
    """Rows beyond which a global batch doesn't grow."""
    tolerance: float = 0.1
    """With `per_worker`, a widened trial whose metric is worse than before by more than this share of it goes back."""

    def __post_init__(self) -> None:
        one_of(self.batch, ("global", "per_worker"), ("batch",))
        if self.lr is not None:
            one_of(self.lr, ("linear", "sqrt", "none"), ("lr",))
        for key in ("warmup_epochs", "tolerance"):
            object.__setattr__(self, key, number(getattr(self, key), (key,)))
            if getattr(self, key) < 0:
                raise InvalidKey((key,), f"must be at least 0, got {getattr(self, key)}")
        _optional_int(self, "max_global_batch", 1)

    def for_trainers(self) -> dict[str, Any]:
        """Give what a trial gets to see."""
        return {key: value for key, value in asdict(self).items() if key != "tolerance"}


@dataclass(frozen=True)
class Limits:
    """When to give up. Seconds; None: never."""

    max_time: float | None = None
    """Seconds that the sweep may run, over all processes that run it in turn."""
    trial_timeout: float | None = None
    """Seconds that a trial may run, over all its segments that counted and the one that runs."""
    max_retries: int = 0
    """How often a trial that failed by its own fault is tried again."""

    def __post_init__(self) -> None:
        for name in ("max_time", "trial_timeout"):
            given = getattr(self, name)
            if given is None:
                continue
            object.__setattr__(self, name, number(given, (name,)))
            if getattr(self, name) <= 0:
                raise InvalidKey((name,), f"must be more than 0 seconds, got {given}")
        _int(self, "max_retries", 0)


@dataclass(frozen=True)
class Checkpoints:
    """Which checkpoints are kept, and how often a long segment writes one."""

    keep: Keep = "best"
    """`best`: the best trial's and those that a trial may still need; `all`: every one that counts."""
    every: int | None = None
    """Iterations between checkpoints inside a segment; None: only at its end."""

    def __post_init__(self) -> None:
        one_of(self.keep, get_args(Keep), ("keep",))
        _optional_int(self, "every", 1)
