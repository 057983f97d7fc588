"""A model and the state of its optimizer, divided among ranks while they train, and whole between two epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state, broadcast_tensors
from hpsearch_trainers.optimizers import clippable, parameters_of

__all__ = ["Divided", "broadcast_states", "clip_by_global_norm", "drop_states", "gather_states", "max_bytes"]


class Divided:
    """Parameters and buffers, each of which one rank has.

    Args:
        tensors: Gives each with its rank, the same on every rank. A model may have other buffers after each step.
        group: The ranks.
    """

    def __init__(self, tensors: Callable[[], Iterable[tuple[Tensor, int]]], group: Group) -> None:
        self._group = group
        self._tensors = tensors
        # A meta tensor keeps shape and strides, and no memory.
        self._remote = [
            (tensor, torch.empty_like(tensor, device="meta", requires_grad=False))
            for tensor, rank in tensors()
            if rank != group.rank and isinstance(tensor, nn.Parameter)
        ]

    def release(self) -> None:
        """Release the memory of the other ranks' parameters, which have no elements from here on."""
        for tensor, _ in self._remote:
            tensor.data = tensor.new_empty(0)

    def gather(self) -> None:
        """Gather all tensors from their ranks; a collective."""
        for tensor, layout in self._remote:
            tensor.data = torch.empty_like(layout, device=tensor.device)
        tensors = list(self._tensors())
        for root in range(self._group.size):
            broadcast_tensors((tensor for tensor, rank in tensors if rank == root), self._group, root)


def drop_states(optimizer: Optimizer, ranks: Mapping[int, int], rank: int) -> None:
    """Forget the state of the parameters of other ranks.

    Args:
        optimizer: Of parameters.
        ranks: The rank of each, by its id.
        rank: This one.
    """
    for parameter in parameters_of(optimizer):
        if ranks[id(parameter)] != rank:
            optimizer.state.pop(parameter, None)


def gather_states(optimizer: Optimizer, ranks: Mapping[int, int], group: Group) -> None:
    """Gather the state of all parameters on rank 0, which saves it; a collective.

    Args:
        optimizer: Of parameters, the same on every rank.
        ranks: The rank of each, by its id.
        group: The ranks.

    Raises:
        UsageError: A state holds what can't travel.
    """
    parameters = parameters_of(optimizer)
    for root in range(1, group.size):
        local_states: dict[int, Any] = {}
        if group.rank == root:
            indices = (index for index, parameter in enumerate(parameters) if parameter in optimizer.state)
            local_states = {index: optimizer.state[parameters[index]] for index in indices}
        states = broadcast_state(local_states, group, root, parameters[0].device, "the optimizer's state")
        if group.rank == 0:
            optimizer.state.update({parameters[index]: state for index, state in states.items()})


def broadcast_states(optimizer: Optimizer, group: Group) -> None:
    """Broadcast the state of all parameters from rank 0; a collective.

    Args:
        optimizer: Of parameters, the same on every rank.
        group: The ranks.

    Raises:
        UsageError: A state holds what can't travel.
    """
    parameters = parameters_of(optimizer)
    local_states = {
        index: optimizer.state[parameter] for index, parameter in enumerate(parameters) if parameter in optimizer.state
    }
    states = broadcast_state(local_states, group, 0, parameters[0].device, "the optimizer's state")
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    optimizer.state.update({parameters[index]: state for index, state in states.items()})


def clip_by_global_norm(parameters: Iterable[nn.Parameter], limit: float, group: Group) -> None:
    """Scale gradients down to a norm over those of all ranks; a collective.

    Args:
        parameters: Those of other ranks have no gradient here.
        limit: See `Parts.clip_norm`.
        group: The ranks.
    """
    clipped = clippable(parameter for parameter in parameters if parameter.grad is not None)
    norm = nn.utils.get_total_norm(parameter.grad for parameter in clipped if parameter.grad is not None)
    squares = group.allreduce(norm.double().square().cpu(), op="sum")
    nn.utils.clip_grads_with_norm_(clipped, limit, squares.sqrt().to(norm))


def max_bytes(tensors: Iterable[Tensor | None], optimizer: Optimizer, group: Group) -> float:
    """Return how many bytes the rank has that has most of them; a collective.

    Args:
        tensors: Of this rank, each once; without their gradients.
        optimizer: Its state counts as well.
        group: The ranks.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    gradients = [tensor.grad for tensor in present if tensor.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    total = float(sum(_bytes(tensor) for tensor in (*present, *gradients, *states)))
    count = torch.tensor(total, dtype=torch.float64, device="cpu")
    return float(group.allreduce(count, op="max"))


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes
