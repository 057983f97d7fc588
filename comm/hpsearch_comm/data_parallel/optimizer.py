"""An optimizer that steps on gradients averaged over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Literal

import torch

from hpsearch_comm.data_parallel.agreement import check_agreement, describe_tensors
from hpsearch_comm.data_parallel.broadcast import broadcast_optimizer_state, broadcast_tensors
from hpsearch_comm.data_parallel.reducer import GradientReducer
from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group


class RankOptimizer(torch.optim.Optimizer):
    """Base class of distributed optimizers: no parameter groups can be added, and no copies made."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise an error: the gradients of the group wouldn't be averaged.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"a group of parameters can't be added to a DistributedOptimizer, got {sorted(param_group)}: their "
            "gradients wouldn't be averaged. Add it to an optimizer of the same class, and wrap that"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Raise an error: the optimizer can't be copied or pickled.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a DistributedOptimizer can't be copied or pickled, since it belongs to this process's rank: save its "
            "state_dict()"
        )


class DistributedOptimizer(RankOptimizer):
    """Wraps an optimizer: `loss.backward()` averages the gradients of its parameters over the ranks.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(optimizer, model.named_parameters(), group)

    An alternative to `DataParallel`, for scripts from Horovod or models that can't be wrapped; don't use both. The
    constructor is a collective: parameters and the optimizer's state become rank 0's. It doesn't send buffers; call
    `broadcast_parameters(model.state_dict(), group)` for that.

    Schedulers and GradScaler accept it instead of the optimizer: groups, state and hooks are those of the optimizer.

    Args:
        optimizer: The optimizer.
        named_parameters: The model's named parameters. They must include all parameters of the optimizer; only the
            gradients of the optimizer's parameters are averaged.
        group: The ranks.
        bucket_mb: Size of a bucket of gradients in MiB.
        compression: "fp16" or "bf16" sends and rounds gradients in 16 bits; None sends gradients unchanged.
        backward_passes_per_step: Number of backward passes after which gradients are averaged. Until then they
            accumulate. Their sum is averaged over the ranks, so divide each loss by this number for the mean over the
            passes. An earlier `step()` averages the gradients accumulated so far.
        overlap: Whether gradients are averaged during the backward pass. None decides by the expected gain: yes between
            hosts, on GPUs, and if the host has more cores than the ranks' backward passes use.

    Raises:
        MismatchError: Parameters differ between ranks. The error names the first different one, on every rank.
        UsageError: An argument is invalid, or a parameter has no name.
    """

    optimizer: torch.optim.Optimizer
    _step_supports_amp_scaling = False
    """False makes GradScaler unscale gradients before `step`. With True it would set its factor on this object, where
    the wrapped optimizer's fused step doesn't read it."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        group: Group,
        *,
        bucket_mb: float = 25.0,
        compression: Literal["fp16", "bf16"] | None = None,
        backward_passes_per_step: int = 1,
        overlap: bool | None = None,
    ) -> None:
        # The base's __init__ is not called: groups and state are those of the wrapped optimizer, see __getattr__.
        self.optimizer = optimizer
        self.group = group
        check_passes(backward_passes_per_step)
        stepped = {id(parameter) for settings in optimizer.param_groups for parameter in settings["params"]}
        named = [(name, parameter) for name, parameter in named_parameters if id(parameter) in stepped]
        check_named(optimizer, {id(parameter) for _, parameter in named})
        reducer = GradientReducer(
            named, group, bucket_mb=bucket_mb, compression=compression, passes=backward_passes_per_step, overlap=overlap
        )
        self._reducer = reducer
        arguments = (
            f"settings bucket_mb={bucket_mb}, compression={compression}, "
            f"backward_passes_per_step={backward_passes_per_step}"
        )
        check_agreement(group, "the optimizer", [arguments, *describe_tensors("parameter", named)])
        broadcast_tensors((parameter for _, parameter in named), group)
        broadcast_optimizer_state(optimizer, group)
        reducer.watch(self)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Average the gradients that haven't been averaged since the last step, if any, and step the optimizer.

        Args:
            closure: A function that evaluates the model again. For optimizers that use the loss, such as LBFGS, it must
                return the mean over the ranks, as with `group.allreduce(loss.detach())`.
        """
        if self._reducer.pending:
            self._reducer.synchronise()
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, including accumulated ones."""
        self._reducer.forget()
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state."""
        return dict(self.optimizer.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state on this rank; `broadcast_optimizer_state` sends it to other ranks."""
        self.optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        # Attributes that the base class stores in an instance: groups, state, defaults, hooks.
        if name == "optimizer":
            raise AttributeError(name)  # not yet set while the object is unpickled or copied
        return getattr(self.__dict__["optimizer"], name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"


def check_passes(passes: int) -> None:
    """Raise UsageError unless `passes` is an integer of 1 or more."""
    if type(passes) is not int or passes < 1:
        raise UsageError(f"backward_passes_per_step must be an integer of 1 or more, got {passes!r}")


def check_named(optimizer: torch.optim.Optimizer, named: Container[int]) -> None:
    """Raise UsageError unless the ids of all parameters of an optimizer are in `named`."""
    for number, settings in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(settings["params"]):
            if id(parameter) not in named:
                raise UsageError(
                    f"parameter {index} of the optimizer's group {number}, of shape {list(parameter.shape)}, isn't "
                    "among the named parameters, so its gradient wouldn't be averaged: pass "
                    "model.named_parameters() of the whole model"
                )
