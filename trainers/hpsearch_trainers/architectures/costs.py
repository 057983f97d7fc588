"""Costs of a network, measured on the meta device, which allocates no memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from hpsearch_trainers.architectures.calls import module
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.shapes import Shape, positive_int


@dataclass(frozen=True)
class Costs:
    """Costs of a network.

    Attributes:
        parameters: Number of trainable parameters, counted by element.
        flops: Floating point operations of a forward pass for one row, as torch counts them: two for each
            multiplication and addition of convolutions, linear layers and attention, none for anything else.
        peak_memory_bytes: Estimated peak of a training step: weights, buffers, gradients, optimizer state, a batch, and
            tensors at the peak of the passes. Workspaces of kernels, caches of allocators and temporaries of an
            optimizer's step are not included.
    """

    parameters: int
    flops: int
    peak_memory_bytes: int


def costs(
    value: Any,
    inputs: Shape = (1, 8, 8),
    outputs: int = 10,
    *,
    stem: Any = None,
    head: Any = None,
    batch: int = 32,
    optimizer_copies: int = 1,
    path: str = "architecture",
) -> Costs:
    """Return the costs of an architecture's network. No weights are allocated.

    Args:
        value: The architecture; or a function without arguments that builds any module, for which `outputs`, `stem`,
            `head` and `path` are ignored.
        inputs: The shape of the input, without the batch.
        outputs: As in `network`.
        stem: As in `network`.
        head: As in `network`.
        batch: Rows of a training step.
        optimizer_copies: Numbers that the optimizer keeps for each weight: 0 for SGD without momentum, 1 with it, 2 for
            Adam.
        path: As in `network`.

    Raises:
        ArchitectureError: No network can be built from it.
        ValueError: An argument is out of range; or the network can't be trained, such as batch normalization of a
            single number for a batch of one row.
    """
    positive_int("batch", batch)
    if not isinstance(optimizer_copies, int) or optimizer_copies < 0:
        raise ValueError(f"optimizer_copies must be a whole number of at least 0, got {optimizer_copies!r}")
    if isinstance(value, nn.Module):
        raise ValueError(f"value must be an architecture or a function that builds a module, got {type(value)}")
    build: Callable[[], nn.Module] = value
    if not callable(value):
        build = partial(module, plan_network(value, inputs, outputs, stem=stem, head=head, path=path))
    shape = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    # The caller may have disabled gradients; then there would be no backward pass to count.
    with torch.device("meta"), torch.inference_mode(False), torch.enable_grad():
        network = build()
        _check_meta(network)
        trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
        weight_bytes = sum(map(_size, {*network.parameters(), *network.buffers()}))
        state_bytes = optimizer_copies * sum(map(_size, trainable))
        return Costs(
            parameters=sum(parameter.numel() for parameter in trainable),
            flops=_flops(network, torch.empty(1, *shape)),
            peak_memory_bytes=weight_bytes + state_bytes + _passes(network, torch.empty(batch, *shape)),
        )


def _check_meta(network: nn.Module) -> None:
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if not tensor.is_meta:
            raise ValueError(
                f"{name} must be made on torch's default device, so that counting it allocates nothing, got one on "
                f"{tensor.device}"
            )


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flops(network: nn.Module, row: Tensor) -> int:
    network.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(row)
    return int(counter.get_total_flops())


def _passes(network: nn.Module, batch: Tensor) -> int:
    """Return the peak bytes of a batch, its forward and backward pass, and the gradients of the weights."""
    network.train()
    live = _Live([*network.parameters(), *network.buffers()])
    live.add(batch)
    with live:
        out = network(batch)
        if out.requires_grad:
            out.square().mean().backward()
    return live.peak


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the live tensors, at every operation.

    Args:
        ignored: Tensors that don't count.

    Attributes:
        peak: Bytes at the peak.
    """

    def __init__(self, ignored: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._current = 0
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in ignored:
            self._watch(tensor, 0)

    def add(self, tensor: Tensor) -> None:
        """Count a tensor, unless it is a view of one that is counted."""
        self._watch(tensor, tensor.untyped_storage().nbytes())
        self.peak = max(self.peak, self._current)

    def _watch(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)  # the same object as long as a tensor uses it
        if key in self._storages:
            return

        def ended(_: object) -> None:
            self._current -= size
            del self._storages[key]

        self._current += size
        self._storages[key] = weakref.ref(storage, ended)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return out
