"""Broadcast of parameters and optimizer states, and of Python objects.

Objects are pickled, as in Horovod. Unpickling can run code of the sending rank. Ranks are processes of one user that
have authenticated each other with the job's secret.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from hpsearch_comm.data_parallel import broadcast
from hpsearch_comm.errors import MismatchError, UsageError
from hpsearch_comm.horovod.errors import HorovodInternalError
from hpsearch_comm.horovod.gathering import allgather, broadcast_, broadcast_async_
from hpsearch_comm.horovod.handles import synchronize
from hpsearch_comm.horovod.job import rank
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]], root_rank: int
) -> None:
    """Copy the root's tensors to all ranks, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`. The names must be the same on
            all ranks; without names, the order must be the same.
        root_rank: The rank whose tensors are sent.

    Raises:
        UsageError: params has another type, or an item is not a tensor. The error is a ValueError.
        HorovodInternalError: The ranks' tensors have different shapes or dtypes.
    """
    if isinstance(params, Mapping):
        named: list[tuple[str | None, Any]] = list(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise UsageError(
            f"params must be a dict of tensors, or tensors with or without names, got {type(params).__name__}: pass "
            "model.state_dict()"
        )
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            where = "" if name is None else f" under the name {name}"
            raise UsageError(
                f"params must be tensors, got {type(tensor).__name__}{where}: leave it out, and send it with "
                "hvd.broadcast_object"
            )
    handles = [broadcast_async_(tensor.detach(), root_rank, name) for name, tensor in named]
    failure: HorovodInternalError | None = None
    for handle in handles:  # wait for all, so that none is pending when an error is raised
        try:
            synchronize(handle)
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on all ranks; on the root, the object itself.

    Args:
        obj: An object that can be pickled; used on the root only.
        root_rank: The rank in the job whose object is sent.
        name: The name by which the ranks match calls. Without names, the n-th calls of all ranks match.
        process_set: The ranks.

    Raises:
        UsageError: The root's object can't be pickled; raised on all ranks.
    """
    mine = rank() == root_rank
    data, reason = _pickled(obj) if mine else (b"", "")
    length = torch.tensor([-1 if reason else len(data)], device="cpu")
    broadcast_(length, root_rank, name and f"{name}.length", process_set)
    _check_pickled({root_rank: int(length)}, reason)
    if mine:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    else:
        content = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    broadcast_(content, root_rank, name and f"{name}.content", process_set)
    return obj if mine else pickle.loads(content.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in the order of ranks.

    Args:
        obj: An object that can be pickled.
        name: The name by which the ranks match calls. Without names, the n-th calls of all ranks match.

    Raises:
        UsageError: A rank's object can't be pickled; raised on all ranks.
    """
    data, reason = _pickled(obj)
    length = torch.tensor([-1 if reason else len(data)], device="cpu")
    lengths = allgather(length, name and f"{name}.lengths").tolist()
    _check_pickled(dict(enumerate(lengths)), reason)
    content = allgather(torch.frombuffer(bytearray(data), dtype=torch.uint8), name and f"{name}.content")
    return [pickle.loads(part.numpy().tobytes()) for part in torch.split(content, lengths)]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Copy the root's optimizer state and options to all ranks.

    The optimizers may or may not have taken a step. If an optimizer has no state, its parameters without a gradient get
    a zero gradient, as Horovod's scripts expect.

    Args:
        optimizer: The optimizer. Its class and parameter groups must be the same on every rank.
        root_rank: The rank whose state is sent.
        model: The model; its sparse embeddings define which of these zero gradients are sparse.

    Raises:
        UsageError: The optimizer is torch.optim.LBFGS, as in Horovod, the ranks' parameter groups differ, or the root's
            state has a value that isn't a number, text, a tensor or a container of them. Raised on all ranks.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("the state of torch.optim.LBFGS can't be broadcast: make the optimizer behind a restart anew")
    if not optimizer.state_dict()["state"]:
        _init_gradients(optimizer, model)
    job: Any = _Job()
    try:
        broadcast.broadcast_optimizer_state(optimizer, job, root_rank)
    except MismatchError as error:
        raise UsageError(str(error)) from error


class _Job:
    """The job as the group that `hpsearch_comm.broadcast_optimizer_state` takes."""

    def __init__(self) -> None:
        self.rank = rank()

    def gather_in(self, _step: str, value: Any) -> list[Any]:
        return allgather_object(value, "optimizer_state.groups")

    def broadcast_object(self, value: Any, root: int) -> Any:
        return broadcast_object(value, root, "optimizer_state")

    def broadcast_async(self, tensor: torch.Tensor, root: int) -> Any:
        return SimpleNamespace(wait=partial(synchronize, broadcast_async_(tensor, root)))


def _pickled(obj: Any) -> tuple[bytes, str]:
    """Return an object's pickle and an empty reason, or no bytes and the reason why it can't be pickled."""
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), ""
    except Exception as error:  # an object's code can raise any exception
        return b"", f"{type(obj).__name__}: {error}"


def _check_pickled(lengths: Mapping[int, int], reason: str) -> None:
    unpicklable = [number for number, length in lengths.items() if length < 0]
    if unpicklable:
        detail = f", got {reason}" if reason else ""
        raise UsageError(
            f"an object must be one that pickle can write to travel, rank {unpicklable[0]}'s can't{detail}: send what "
            "it is made of"
        )


def _init_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    sparse = {
        layer.weight
        for layer in (model.modules() if model is not None else ())
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag) and layer.sparse
    }
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                lone_rows = parameter in sparse or isinstance(optimizer, torch.optim.SparseAdam)
                parameter.grad = zeros.to_sparse(1) if lone_rows else zeros
