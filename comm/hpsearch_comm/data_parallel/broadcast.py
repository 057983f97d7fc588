"""Broadcast of parameters, buffers and optimizer state from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hpsearch_comm.data_parallel.agreement import check_agreement, describe_tensors
from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.header import DTYPES, dtype_named


def broadcast_parameters(
    parameters: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], group: Group, root: int = 0
) -> None:
    """Overwrite tensors with those of the rank `root`, in place; a collective.

    Args:
        parameters: `model.state_dict()`, `model.named_parameters()` or similar. Values that aren't tensors are ignored.
        group: The ranks.
        root: The rank whose tensors are sent.

    Raises:
        MismatchError: Names, shapes or dtypes differ between ranks; raised on all.
    """
    named = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    tensors = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    check_agreement(group, "what is broadcast", describe_tensors("tensor", tensors))
    broadcast_tensors((tensor for _, tensor in tensors), group, root)


def broadcast_tensors(tensors: Iterable[torch.Tensor], group: Group, root: int = 0) -> None:
    """Overwrite tensors with the root's; a collective. Shapes and dtypes must be the same; this isn't checked."""
    under_way = [group.broadcast_async(tensor.detach(), root) for tensor in tensors]
    for operation in under_way:
        operation.wait()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, group: Group, root: int = 0) -> None:
    """Copy the root's optimizer state and parameter-group options to every rank; a collective.

    Structure and plain numbers are sent as JSON, tensors as tensors. Other ranks' optimizers need no state, so only the
    root has to load a checkpoint.

    Args:
        optimizer: The optimizer. Its class and parameter groups must be the same on every rank.
        group: The ranks.
        root: The rank whose state is sent.

    Raises:
        MismatchError: The parameter groups differ between ranks; raised on all.
        UsageError: The root's state contains a value that can't be sent; raised on all.
    """
    check_agreement(group, "an optimizer's parameters", _describe_groups(optimizer))
    parameters = [parameter for settings in optimizer.param_groups for parameter in settings["params"]]
    device = parameters[0].device if parameters else torch.device("cpu")
    own_state = optimizer.state_dict() if group.rank == root else None
    state = broadcast_state(own_state, group, root, device, "state_dict()")
    if group.rank != root:
        load_exactly(optimizer, state)


def broadcast_state(value: Any, group: Group, root: int, device: torch.device, name: str) -> Any:
    """Send the root's state to every rank: numbers, strings, tensors, and containers of them; a collective.

    Args:
        value: The root's state; ignored on other ranks.
        group: The ranks.
        root: The rank whose state is sent.
        device: This rank's device for tensors that are on the root's GPU.
        name: The name of the value, for the error.

    Raises:
        UsageError: The state contains a value that can't be sent; raised on all.
    """
    tensors: list[torch.Tensor] = []
    message = None
    if group.rank == root:
        try:
            message = {"state": _pack(value, tensors, name)}
        except UsageError as error:
            message = {"error": str(error)}
    received = group.broadcast_object(message, root)
    if "error" in received:
        raise UsageError(received["error"])
    state = value if group.rank == root else _unpack(received["state"], tensors, device)
    broadcast_tensors(tensors, group, root)
    return state


def _describe_groups(optimizer: torch.optim.Optimizer) -> list[str]:
    return [f"optimizer {type(optimizer).__name__}"] + [
        line
        for number, settings in enumerate(optimizer.param_groups)
        for line in describe_tensors(
            f"parameter group {number},", ((f"number {i}", p) for i, p in enumerate(settings["params"]))
        )
    ]


def _pack(value: Any, tensors: list[torch.Tensor], where: str) -> Any:
    """Convert a nested state to JSON-like values. Tensors are appended to the list and replaced by a description.

    A value that JSON doesn't support becomes a list whose first item is the name of its kind.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            value = value.coalesce()
            parts = [_pack(part, tensors, where) for part in (value.indices(), value.values())]
            return ["sparse", list(value.shape), *parts]
        if value.layout is not torch.strided:
            raise UsageError(f"{where} is a {value.layout} tensor, only dense and sparse_coo ones can be broadcast")
        if value.dtype not in DTYPES:
            raise UsageError(f"{where} is a tensor of {value.dtype}, which can't be broadcast: convert it first")
        tensors.append(value)
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, *(_pack(item, tensors, f"{where}[{index}]") for index, item in enumerate(value))]
    if isinstance(value, Mapping):
        return ["dict", *([_key(key, where), _pack(item, tensors, f"{where}[{key!r}]")] for key, item in value.items())]
    if isinstance(value, float | int):  # numpy's float64 and the like
        return float(value) if isinstance(value, float) else int(value)
    raise UsageError(
        f"{where} is a {type(value).__name__}, which can't be broadcast: only numbers, strings, tensors, and lists, "
        "tuples and dicts of them can. Leave it out, or set it on every rank"
    )


def _key(key: Any, where: str) -> int | str:
    if type(key) not in (int, str):
        raise UsageError(f"the keys of {where} must be strings or integers to be broadcast, got {key!r}")
    return key  # type: ignore[no-any-return]


def _unpack(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Convert the result of `_pack` back to a state. Its tensors are not yet filled; they are appended to the list."""
    if not isinstance(value, list):
        return value
    kind, *content = value
    if kind == "tensor":
        dtype, shape, where = content
        # The index of the root's GPU may differ from that of this rank's.
        target_device = device if where == device.type else torch.device(where)
        tensors.append(torch.empty(shape, dtype=dtype_named(dtype), device=target_device))
        return tensors[-1]
    if kind == "sparse":
        shape, *parts = content
        indices, values = (_unpack(part, tensors, device) for part in parts)
        # Unchecked: the sparse tensor shares memory with the indices, which haven't been received yet.
        return torch.sparse_coo_tensor(
            indices, values, shape, device=values.device, check_invariants=False, is_coalesced=True
        )
    if kind == "dict":
        return {key: _unpack(item, tensors, device) for key, item in content}
    items = [_unpack(item, tensors, device) for item in content]
    return items if kind == "list" else tuple(items)
