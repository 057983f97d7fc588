"""Loading of optimizers and schedulers in forks: the parent's state with the fork's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpsearch.errors import TrainableError
from hpsearch.trainable.current import current_trial, in_trial

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

_MADE = "_hpsearch_made_lr"
"""Attribute of a restored optimizer: the learning rates it was created with. Removed when a scheduler is restored."""


def restore(target: Optimizer | LRScheduler, state: Mapping[str, Any]) -> None:
    """Load the saved state of an optimizer or a learning rate scheduler, like `target.load_state_dict(state)`.

    In a fork that starts from its parent's checkpoint, `target` keeps the settings it was created with (`lr`,
    `weight_decay`, `gamma`, ...). An optimizer only loads moments and velocities. A scheduler is stepped as many times
    as the parent's scheduler; a ReduceLROnPlateau starts from scratch.

    Args:
        target: A torch optimizer or scheduler, created from the trial's own parameters. Create schedulers before their
            optimizer is restored, and restore them after it.
        state: What its `state_dict()` returned.

    Raises:
        TrainableError: `target` is neither an optimizer nor a scheduler.
    """
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from hpsearch_comm.data_parallel.optimizer_state import load_exactly
    from hpsearch_trainers.rates import replay

    forked = in_trial() and current_trial().parent is not None
    if isinstance(target, LRScheduler):
        if forked:
            _reset_rates(target.optimizer)
            replay(target, state)
        else:
            target.load_state_dict(dict(state))
    elif isinstance(target, Optimizer):
        inner = getattr(target, "optimizer", target)  # the optimizer in a DistributedOptimizer
        if forked:
            _load_moments(inner, state)
        else:
            load_exactly(inner, state)
    else:
        raise TrainableError(
            f"hpsearch.restore must get an optimizer or a scheduler of torch's, got {type(target).__name__}: load "
            "anything else by its own load_state_dict"
        )


def _load_moments(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    from hpsearch_trainers.forks import load_from_other

    fresh = load_from_other(optimizer, state)
    if fresh > 0:
        print(f"the optimizer's state begins anew for {fresh} parameters: the one forked from had another")
    setattr(optimizer, _MADE, [group["lr"] for group in optimizer.param_groups])
    for group, other in zip(optimizer.param_groups, state["param_groups"], strict=False):
        if "initial_lr" in other:  # a scheduler changed the learning rate: apply the same factor to the fork's own rate
            rate, theirs = group.setdefault("initial_lr", group["lr"]), float(other["initial_lr"])
            if theirs != 0:
                group["lr"] = rate * (float(other["lr"]) / theirs)


def _reset_rates(optimizer: Optimizer) -> None:
    """Reset a restored optimizer once to the learning rates it was created with; schedulers then change them again."""
    created_rates = optimizer.__dict__.pop(_MADE, None)
    for group, rate in zip(optimizer.param_groups, created_rates or (), strict=False):
        group["lr"] = rate
