"""Batch size and learning rate of a trial that may run on one worker or on many.

Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2: when the minibatch is
multiplied by k, multiply the learning rate by k (2.1), and reach it from the unscaled rate by equal amounts in every
step of the first five epochs (2.2). A trial may change its width between two epochs, so this is done whenever it grows:
the rate rises from its current value. When the width shrinks, the rate follows at once.

    epoch      0          10           15            20
    width      1          4                          2
    factor     1 ──────── 1 ── rises ── 4 ────────── 2 ──────     linear, warmup_epochs: 5

All of this is a pure function of the history, so a resumed or repeated trial has the same rates.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from hpsearch_comm.errors import ConfigurationError

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda _times: 1.0}
"""What the rate is multiplied by when the global batch is, by the name of the rule."""

_BATCHES = ("global", "per_worker")
_OF_OPTIMIZERS = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "LAMB", "NAdam", "RAdam", "SparseAdam"), "sqrt"),
    **dict.fromkeys(("RMSprop", "Adadelta", "Adafactor", "Muon"), "sqrt"),
    **dict.fromkeys(("Adagrad", "Rprop"), "none"),
}
"""By the name of the class; for all others it is `linear`."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How batch size and rate follow the width of a trial: the `scaling` of a sweep.

    Raises:
        ConfigurationError: A value can't be used.
    """

    batch: str = "global"
    """`global`: the batch is divided among the workers, so the result doesn't depend on the width. `per_worker`: every
    worker has its own batch, so the global one grows with the width."""
    lr: str | None = None
    """linear, sqrt or none; by default the rule that `rule_for` returns for the optimizer."""
    warmup_epochs: float = 5.0
    """Epochs in which the rate rises after the width has grown; 0 for at once."""
    max_global_batch: int | None = None
    """Rows of a global batch beyond which it no longer grows."""

    def __post_init__(self) -> None:
        if self.batch not in _BATCHES:
            raise ConfigurationError(f"scaling.batch must be one of {', '.join(_BATCHES)}, got {self.batch!r}")
        if self.lr is not None and self.lr not in RULES:
            raise ConfigurationError(f"scaling.lr must be one of {', '.join(RULES)}, got {self.lr!r}")
        if not _is_number(self.warmup_epochs) or not 0 <= self.warmup_epochs < math.inf:
            raise ConfigurationError(
                f"scaling.warmup_epochs must be a number of at least 0, got {self.warmup_epochs!r}"
            )
        limit = self.max_global_batch
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigurationError(f"scaling.max_global_batch must be a whole number of at least 1, got {limit!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scaling:
        """Return the scaling that a sweep names; missing keys have their defaults.

        Raises:
            ConfigurationError: A key is unknown, or a value can't be used.
        """
        names = [field.name for field in fields(cls)]
        for key in values:
            if key not in names:
                close = difflib.get_close_matches(str(key), names, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigurationError(f"scaling must have the keys {', '.join(names)}, got {key!r}{hint}")
        return cls(**values)

    def global_batch(self, batch: int, width: int) -> int:
        """Return the rows of one optimizer step, over all workers.

        Args:
            batch: Rows that the trial's parameters name.
            width: Number of workers.

        Raises:
            ConfigurationError: There are fewer rows than workers.
        """
        rows = batch * width if self.batch == "per_worker" else batch
        if self.max_global_batch is not None:
            # A batch that is larger by itself was asked for: it is not cut, it only doesn't grow.
            rows = min(rows, max(self.max_global_batch, batch))
        if rows < width:
            raise ConfigurationError(
                f"a global batch must have a row for each of the {width} workers, got {rows} rows "
                f"(batch {batch}, scaling.batch {self.batch}): raise the batch, or lower max_workers_per_trial"
            )
        return rows

    def target(self, batch: int, width: int, rule: str) -> float:
        """Return the factor of the rate at this width, after the warmup.

        Args:
            batch: Rows that the trial's parameters name, for which its rate is meant.
            width: Number of workers.
            rule: The rule if `lr` is None; see `rule_for`.
        """
        return RULES[self.lr or rule](self.global_batch(batch, width) / batch)


@dataclass(frozen=True, slots=True)
class Stage:
    """From an epoch on, the rate is to be multiplied by another factor."""

    epoch: float
    """Epochs that were done by then."""
    target: float


def describe_target(target: float, rule: str, optimizer: torch.optim.Optimizer) -> str:
    """Return how `Scaling.target` changes an optimizer's rate, and why."""
    kind = type(optimizer).__name__
    return f"goes to {target:g} times its own ({rule}, the rule for {kind}; scaling.lr names another)"


def rate_factor(stages: Iterable[Stage], epoch: float, warmup_epochs: float) -> float:
    """Return the factor of the rate at a moment.

    Args:
        stages: In their order, the first at epoch 0. Before it the factor is 1, the unscaled rate.
        epoch: The moment, in epochs; 2.25 is after a quarter of the third.
        warmup_epochs: Duration of a rise.
    """
    began, start, target = 0.0, 1.0, 1.0
    for stage in stages:
        if stage.epoch > epoch:
            break
        if stage.target != target:
            reached = _rise(start, target, stage.epoch - began, warmup_epochs)
            began, start, target = stage.epoch, min(reached, stage.target), stage.target
    return _rise(start, target, epoch - began, warmup_epochs)


def rule_for(optimizer: torch.optim.Optimizer) -> str:
    """Name the rule that suits an optimizer, of torch's, of ours, or derived from one of these; `linear` for others.

    - `sqrt` where a step's size doesn't depend on the gradient's, as it is divided by a mean of its recent size: of a
      batch of k times the rows the gradient's noise, and so this size, is 1/√k. Malladi et al. 2022 ("On the SDEs and
      Scaling Rules for Adaptive Gradient Algorithms", arXiv:2205.10287) derive it for RMSprop and Adam. Whether
      RMSprop has a momentum, or is centered, changes nothing. That Adadelta, Adafactor, LAMB and Muon follow the
      same is our conclusion. Their rule also takes 1 - β times k, for every β, and ε by √k; these stay what the
      trial's parameters make them, so averages reach as many steps back as before, over k times the rows.
    - `none` for Adagrad, which divides by the root of a sum over all steps: where noise prevails it falls by k, as
      there are 1/k of the steps and each square is 1/k, so that steps grow k-fold by themselves. And for Rprop, whose
      rate is that of its first step alone.
    - `linear` for SGD, with momentum or without, ASGD and LARS (Goyal et al. 2017, section 2.1).
    """
    return next(
        (_OF_OPTIMIZERS[cls.__name__] for cls in type(optimizer).__mro__ if cls.__name__ in _OF_OPTIMIZERS), "linear"
    )


def _rise(start: float, target: float, elapsed: float, length: float) -> float:
    return target if elapsed >= length else start + (target - start) * elapsed / length


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
