"""Load an optimizer or a scheduler as a fork has to: with the state of its parent's, and settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpsearch.errors import TrainableError
from hpsearch.trainable.current import current_trial, in_trial

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

__all__ = ["restore"]

_MADE = "_hpsearch_made_lr"
"""Attribute of an optimizer: the rates that it was made with, until a scheduler begins there."""


def restore(target: Optimizer | LRScheduler, state: Mapping[str, Any]) -> None:
    """Load the saved state of an optimizer, or of a scheduler of its rate, as `target.load_state_dict(state)` does.

    In a fork that begins with its parent's checkpoint, the settings (`lr`, `weight_decay`, `gamma`, ...) stay those
    that `target` was made with: the optimizer takes over moments and velocities alone, and the scheduler is stepped as
    often as the parent's was. A ReduceLROnPlateau begins anew.

    Args:
        target: An optimizer, or a scheduler of torch's, as the trial's own parameters make it. Make schedulers before
            their optimizer is restored, and restore them after it.
        state: What its `state_dict()` gave.

    Raises:
        TrainableError: `target` is something else.
    """
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from hpsearch_comm.data_parallel.optimizer_state import load_exactly
    from hpsearch_trainers.rate_schedulers import replay

    forked = in_trial() and current_trial().parent is not None
    if isinstance(target, LRScheduler):
        if forked:
            _begin_as_made(target.optimizer)
            replay(target, state)
        else:
            target.load_state_dict(dict(state))
    elif isinstance(target, Optimizer):
        inner = getattr(target, "optimizer", target)  # a DistributedOptimizer's
        if forked:
            _take_over(inner, state)
        else:
            load_exactly(inner, state)
    else:
        raise TrainableError(
            f"hpsearch.restore must get an optimizer or a scheduler of torch's, got {type(target).__name__}: load "
            "anything else by its own load_state_dict"
        )


def _take_over(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    from hpsearch_trainers.forks import take_over

    begins = take_over(optimizer, state)
    if begins > 0:
        print(f"the optimizer's state begins anew for {begins} parameters: the one forked from had another")
    setattr(optimizer, _MADE, [group["lr"] for group in optimizer.param_groups])
    for group, other in zip(optimizer.param_groups, state["param_groups"], strict=False):
        if "initial_lr" in other:  # a scheduler set the rate: let it stand as far from its beginning as it did there
            own, theirs = group.setdefault("initial_lr", group["lr"]), float(other["initial_lr"])
            if theirs != 0:
                group["lr"] = own * (float(other["lr"]) / theirs)


def _begin_as_made(optimizer: Optimizer) -> None:
    """Let an optimizer that was restored have the rates that it was made with, once: schedulers set them anew."""
    made = optimizer.__dict__.pop(_MADE, None)
    for group, rate in zip(optimizer.param_groups, made or (), strict=False):
        group["lr"] = rate
