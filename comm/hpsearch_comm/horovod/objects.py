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
    for handle in handles:  # wait for all, so that none is pending when an error is raised; Ctrl-C ends the wait
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
    content = _pickled(obj) if mine else torch.empty(0, dtype=torch.uint8, device="cpu")
    length = torch.tensor([len(content)], device="cpu")
    broadcast_(length, root_rank, name and f"{name}.length", process_set)
    content.resize_(int(length))
    broadcast_(content, root_rank, name and f"{name}.content", process_set)
    received = _unpickled(content)
    return obj if mine else received


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in the order of ranks.

    Args:
        obj: An object that can be pickled.
        name: The name by which the ranks match calls. Without names, the n-th calls of all ranks match.

    Raises:
        UsageError: A rank's object can't be pickled; raised on all ranks.
    """
    content = _pickled(obj)
    lengths = allgather(torch.tensor([len(content)], device="cpu"), name and f"{name}.lengths")
    contents = allgather(content, name and f"{name}.content")
    return [_unpickled(part) for part in torch.split(contents, lengths.tolist())]


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
    job: Any = SimpleNamespace(
        rank=rank(),
        gather_in=lambda _step, value: allgather_object(value, "optimizer_state.groups"),
        broadcast_object=partial(broadcast_object, name="optimizer_state"),
        broadcast_async=lambda tensor, root: SimpleNamespace(wait=partial(synchronize, broadcast_async_(tensor, root))),
    )
    try:
        broadcast.broadcast_optimizer_state(optimizer, job, root_rank)
    except MismatchError as error:
        raise UsageError(str(error)) from error


class _NotPickled(UsageError):
    """What a rank sends instead of an object that can't be pickled, for all ranks to raise."""


def _pickled(obj: Any) -> torch.Tensor:
    try:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # an object's code can raise any exception
        reason = f"rank {rank()}'s can't, got {type(obj).__name__}: {error}"
        data = pickle.dumps(
            _NotPickled(f"an object must be one that pickle can write to travel, {reason}: send what it is made of")
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpickled(content: torch.Tensor) -> Any:
    obj = pickle.loads(content.numpy().tobytes())
    if isinstance(obj, _NotPickled):
        raise UsageError(str(obj))
    return obj


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
