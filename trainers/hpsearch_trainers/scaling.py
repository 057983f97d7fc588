"""Batch size and learning rate of a trial that may run on one worker or several.

Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2: when the minibatch is
multiplied by k, multiply the learning rate by k (2.1), and warm up linearly from the unscaled rate during the first
five epochs (2.2). A trial's number of workers may change between two epochs. When it grows, the rate warms up from its
current value. When it shrinks, the rate drops at once.

    epoch      0          10           15            20
    width      1          4                          2
    factor     1 ──────── 1 ── rises ── 4 ────────── 2 ──────     linear, warmup_epochs: 5

The rates depend only on the history of widths (numbers of workers), so a resumed or repeated trial has the same rates.
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
"""Rules by name: each maps the factor of the global batch to the factor of the learning rate."""

_BATCHES = ("global", "per_worker")
_OF_OPTIMIZERS = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "LAMB", "NAdam", "RAdam", "SparseAdam"), "sqrt"),
    **dict.fromkeys(("RMSprop", "Adadelta", "Adafactor", "Muon"), "sqrt"),
    **dict.fromkeys(("Adagrad", "Rprop"), "none"),
}
"""The rule of each optimizer class, by name; `linear` for all others."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How batch size and learning rate depend on a trial's number of workers: the `scaling` of a sweep.

    Raises:
        ConfigurationError: A value can't be used.
    """

    batch: str = "global"
    """`global`: the batch is divided among the workers, so the result doesn't depend on their number. `per_worker`:
    every worker has a batch of this size, so the global batch grows with the number of workers."""
    lr: str | None = None
    """linear, sqrt or none; by default the rule that `rule_for` returns for the optimizer."""
    warmup_epochs: float = 5.0
    """Epochs of warmup after the number of workers has grown; 0 for none."""
    max_global_batch: int | None = None
    """Maximum size of the global batch, in rows. A larger batch in the trial's parameters isn't reduced."""

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
        """Return the scaling of a sweep; missing keys have their defaults.

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
            batch: Batch size in the trial's parameters.
            width: Number of workers.

        Raises:
            ConfigurationError: There are fewer rows than workers.
        """
        rows = batch * width if self.batch == "per_worker" else batch
        if self.max_global_batch is not None:
            # If the parameters' batch is already larger, it isn't reduced; it only doesn't grow.
            rows = min(rows, max(self.max_global_batch, batch))
        if rows < width:
            raise ConfigurationError(
                f"a global batch must have a row for each of the {width} workers, got {rows} rows "
                f"(batch {batch}, scaling.batch {self.batch}): raise the batch, or lower max_workers_per_trial"
            )
        return rows

    def target(self, batch: int, width: int, rule: str) -> float:
        """Return the factor of the learning rate for a number of workers, after the warmup.

        Args:
            batch: Batch size in the trial's parameters; their learning rate is meant for this size.
            width: Number of workers.
            rule: The rule if `lr` is None; see `rule_for`.
        """
        return RULES[self.lr or rule](self.global_batch(batch, width) / batch)


@dataclass(frozen=True, slots=True)
class Stage:
    """A change of the learning rate's factor."""

    epoch: float
    """Number of finished epochs at the change."""
    target: float
    """Factor after the warmup."""


def describe_target(target: float, rule: str, optimizer: torch.optim.Optimizer) -> str:
    """Return a message about how `Scaling.target` changes an optimizer's rate, and by which rule."""
    kind = type(optimizer).__name__
    return f"goes to {target:g} times its own ({rule}, the rule for {kind}; scaling.lr names another)"


def rate_factor(stages: Iterable[Stage], epoch: float, warmup_epochs: float) -> float:
    """Return the factor of the learning rate at a time.

    Args:
        stages: The stages in order, the first at epoch 0. The first warmup starts from factor 1, the unscaled rate.
        epoch: The time in epochs; 2.25 is after a quarter of the third epoch.
        warmup_epochs: Duration of a warmup.
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
    """Return the scaling rule of an optimizer: of torch, LARS, LAMB, or a subclass of these; `linear` for others.

    - `sqrt` for optimizers that divide the gradient by a mean of its recent magnitude. If the batch grows k-fold, the
      gradient's noise, and so this magnitude, shrinks by √k. Malladi et al. 2022 ("On the SDEs and Scaling Rules for
      Adaptive Gradient Algorithms", arXiv:2205.10287) derive the rule for RMSprop and Adam. Momentum and centering of
      RMSprop don't change it. We apply it to Adadelta, Adafactor, LAMB and Muon by analogy. The paper also multiplies
      1 - β by k for every β, and divides ε by √k. These are not changed here: averages still cover the same number of
      steps, which are k times the rows.
    - `none` for Adagrad, which divides by the root of the sum of squares over all steps. If noise dominates, this root
      shrinks by k, because there are 1/k of the steps and each square is 1/k as large. So steps grow k-fold without
      scaling. `none` also for Rprop, whose rate only sets the size of its first step.
    - `linear` for SGD with or without momentum, ASGD and LARS (Goyal et al. 2017, section 2.1).
    """
    return next(
        (_OF_OPTIMIZERS[cls.__name__] for cls in type(optimizer).__mro__ if cls.__name__ in _OF_OPTIMIZERS), "linear"
    )


def _rise(start: float, target: float, elapsed: float, length: float) -> float:
    return target if elapsed >= length else start + (target - start) * elapsed / length


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
