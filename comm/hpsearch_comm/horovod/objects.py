"""Broadcast of parameters and optimizer states, and of Python objects.

Objects are pickled, as in Horovod. Unpickling can run code of the sending rank. Ranks are processes of one user that
have authenticated each other with the job's secret.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.errors import UsageError
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
        UsageError: The optimizer is torch.optim.LBFGS, as in Horovod, or the ranks' parameter groups differ. Raised on
            all ranks.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("the state of torch.optim.LBFGS can't be broadcast: make the optimizer behind a restart anew")
    _check_groups(optimizer)
    if not optimizer.state_dict()["state"]:
        _init_gradients(optimizer, model)
    mine = rank() == root_rank
    tensors: list[torch.Tensor] = []
    data, reason = _pickled(optimizer.state_dict(), tensors) if mine else (b"", "")
    tensors = [tensor.cpu() for tensor in tensors]  # the other ranks receive them on the CPU before loading
    kinds = [(tensor.dtype, tensor.shape) for tensor in tensors]
    data, reason, kinds = broadcast_object((data, reason, kinds), root_rank, "optimizer_state")
    if reason:
        raise UsageError(f"an optimizer's state must be what pickle can write to travel, got {reason}")
    if not mine:
        tensors = [torch.empty(shape, dtype=dtype, device="cpu") for dtype, shape in kinds]
    broadcast_parameters([(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)], root_rank)
    if not mine:
        load_exactly(optimizer, _TensorUnpickler(io.BytesIO(data), tensors).load())


class _TensorPickler(pickle.Pickler):
    """Pickles an object without its dense tensors, which it appends to a list."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> int | None:
        """Return a dense tensor's index in the list; None for other objects."""
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
            return None
        self._tensors.append(obj)
        return len(self._tensors) - 1


class _TensorUnpickler(pickle.Unpickler):
    """Unpickles an object whose dense tensors are in a list."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        """Return the tensor with this index."""
        return self._tensors[pid]


def _pickled(obj: Any, tensors: list[torch.Tensor] | None = None) -> tuple[bytes, str]:
    """Return an object's pickle and an empty reason, or no bytes and the reason why it can't be pickled.

    With `tensors`, dense tensors are appended to this list instead of being pickled.
    """
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL) if tensors is None else _TensorPickler(file, tensors)
    try:
        pickler.dump(obj)
    except Exception as error:  # an object's code can raise any exception
        return b"", f"{type(obj).__name__}: {error}"
    return file.getvalue(), ""


def _check_pickled(lengths: Mapping[int, int], reason: str) -> None:
    unpicklable = [number for number, length in lengths.items() if length < 0]
    if unpicklable:
        detail = f", got {reason}" if reason else ""
        raise UsageError(
            f"an object must be one that pickle can write to travel, rank {unpicklable[0]}'s can't{detail}: send what "
            "it is made of"
        )


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    shapes = [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]
    first, *others = allgather_object(f"{type(optimizer).__name__} with {shapes}", "optimizer_state.groups")
    for number, other in enumerate(others, 1):
        if other != first:
            raise UsageError(
                "an optimizer must be of one class and have the same groups of parameters on all ranks, but is a "
                f"{first} on rank 0 and a {other} on rank {number} (the shapes by group)"
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
