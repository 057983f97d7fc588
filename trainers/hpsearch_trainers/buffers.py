"""Synchronization of buffers and untrained parameters: running statistics, counters, momentum encoders.

Each worker trains on different rows, so the buffers of its model diverge. They are synchronized at the end of each
epoch, before validation and before a checkpoint. So a checkpoint is the state of every worker, and a resumed trial
trains like one that was never interrupted:

- Floating-point and complex buffers become the mean over the workers. Values that are equal on all workers stay equal
  bit for bit. Cumulative statistics (`momentum=None`) are weighted by the number of batches that each worker has seen.
- Integers and booleans are copied from rank 0. Rank 0 has rows in every step, so a counter counts the steps for any
  number of workers.

The same rules apply to parameters that the optimizer doesn't train, such as those of a momentum encoder. They can be
most of a model and often don't change, so only parameters that differ between workers are sent.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from hpsearch_comm import Group, SyncBatchNorm, convert_sync_batchnorm
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_trainers.optimizers import parameters_of


def normalizations(model: nn.Module) -> Iterator[_BatchNorm]:
    """Return the model's batch normalizations."""
    return (layer for layer in model.modules() if isinstance(layer, _BatchNorm))


def synchronize(model: nn.Module, group: Group | None) -> bool:
    """Convert batch normalizations to synchronized ones; a collective if some aren't converted yet.

    Args:
        model: Its layers are converted in place.
        group: The workers; None if each worker normalizes over its own rows.

    Returns:
        Whether a layer normalizes over the rows of all workers.
    """
    layers = list(normalizations(model))
    if group is not None and not all(isinstance(layer, SyncBatchNorm) for layer in layers):
        convert_sync_batchnorm(model, group)
    return any(isinstance(layer, SyncBatchNorm) for layer in layers)


def hold_statistics(model: nn.Module, *, local_only: bool = False) -> None:
    """Make batch normalizations use their running statistics without updating them, until the next `train()`.

    Args:
        model: Its layers are set to eval mode.
        local_only: Whether to leave synchronized layers unchanged, because all workers must take part in these.
    """
    for layer in normalizations(model):
        if not (local_only and isinstance(layer, SyncBatchNorm)):
            layer.eval()


_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_AT_ONCE = 1 << 24
"""Elements per chunk of a fingerprint's sum; each intermediate tensor has 128 MiB."""
_GOLDEN, _MIX = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64


@torch.no_grad()
def synchronize_buffers(model: nn.Module, group: Group) -> None:
    """Make each buffer of a model equal on all workers, bit for bit; a collective.

    Args:
        model: Its buffers must have the same names and shapes on every worker.
        group: The workers.
    """
    _synchronize(model.buffers(), _batches_seen(model), group)


@torch.no_grad()
def synchronize_untrained(model: nn.Module, average: nn.Module | None, optimizer: Optimizer, group: Group) -> None:
    """Make each untrained parameter equal on all workers, bit for bit; a collective.

    Args:
        model: The model that the optimizer trains.
        average: Its moving average, or None.
        optimizer: An optimizer of the same parameters on every worker.
        group: The workers.
    """
    tensors: list[Tensor] = list(untrained(model, optimizer))
    if average is not None:
        ids = {id(parameter) for parameter in tensors}
        pairs = zip(model.parameters(), average.parameters(), strict=True)
        tensors += [averaged for parameter, averaged in pairs if id(parameter) in ids]
    _synchronize(differing(tensors, group), {}, group)


def untrained(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of a model that an optimizer doesn't train."""
    trained = {id(parameter) for parameter in parameters_of(optimizer) if parameter.requires_grad}
    return [parameter for parameter in model.parameters() if id(parameter) not in trained]


def differing(tensors: Iterable[Tensor], group: Group) -> list[Tensor]:
    """Return the tensors that are not equal bit for bit on all workers; a collective.

    Args:
        tensors: Dense tensors, in the same order and of the same shapes on every worker.
        group: The workers.
    """
    tensors = list(tensors)
    of_workers = group.allgather_object(_marks(tensors)) if tensors else []
    return [tensor for tensor, *marks in zip(tensors, *of_workers, strict=True) if len(set(marks)) > 1]


def _marks(tensors: Iterable[Tensor]) -> list[object]:
    """Return a hash of each tensor. Results from a GPU are copied to the CPU in one transfer."""
    tensors = list(tensors)
    sums = [fingerprint(tensor) for tensor in tensors if tensor.device.type != "cpu"]
    fingerprints = iter(torch.stack(sums).cpu().tolist() if sums else ())
    return [digest(tensor) if tensor.device.type == "cpu" else next(fingerprints) for tensor in tensors]


def fingerprint(tensor: Tensor) -> Tensor:
    """Return a hash of the bits of a dense tensor, computed on the tensor's device.

    It is the sum, modulo 2**64, of each element's bits times an odd number that depends on its position (Steele, Lea
    and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 15, without its last step). Two
    different tensors collide with probability 2**-64, and never if they differ in a single element.

    Returns:
        int64, 0-dimensional.
    """
    elements = tensor.detach().reshape(-1)
    if elements.is_complex():
        elements = torch.view_as_real(elements.resolve_conj()).reshape(-1)
    elements = elements.view(_OF_SIZE[elements.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(elements), _AT_ONCE):
        part = elements[start : start + _AT_ONCE].to(torch.int64)
        mixed = torch.arange(start + 1, start + 1 + len(part), device=tensor.device) * _GOLDEN
        mixed = (mixed ^ (mixed >> 30)) * _MIX
        total += (part * (mixed ^ (mixed >> 27) | 1)).sum()
    return total


def digest(tensor: Tensor) -> str:
    """Return a hash of the bits of a dense tensor."""
    octets = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(octets.data, digest_size=16).hexdigest()


def _synchronize(tensors: Iterable[Tensor], weights: Mapping[int, float], group: Group) -> None:
    averaged: list[Tensor] = []
    counted: list[Tensor] = []
    for tensor in tensors:
        (averaged if tensor.is_floating_point() or tensor.is_complex() else counted).append(tensor)
    if averaged:
        _average(averaged, weights, group)  # before the counters are overwritten, as these are its weights
    broadcast_tensors(counted, group)


def _average(buffers: list[Tensor], weights: Mapping[int, float], group: Group) -> None:
    numbers = [_numbers(buffer) for buffer in buffers]
    values = torch.cat(numbers)
    sizes = [len(part) for part in numbers]
    of_each = torch.tensor(sizes, device=values.device)
    weight = torch.tensor(
        [weights.get(id(buffer), 1.0) for buffer in buffers], dtype=values.dtype, device=values.device
    )
    root = group.broadcast(values.clone())
    # Average the differences to rank 0's values: equal values aren't rounded, and infinities stay.
    differences = torch.where(values == root, 0.0, values - root) * weight.repeat_interleave(of_each)
    sums, total = torch.split(group.allreduce(torch.cat([differences, weight]), op="sum"), [len(values), len(weight)])
    means = root + sums / total.clamp(min=1.0).repeat_interleave(of_each)
    for buffer, mean in zip(buffers, torch.split(means, sizes), strict=True):
        if buffer.is_complex():
            pairs = mean.clone().view(*buffer.shape, 2)  # a clone, because view_as_complex needs an even offset
            buffer.copy_(torch.view_as_complex(pairs))
        else:
            buffer.copy_(mean.view(buffer.shape))


def _numbers(buffer: Tensor) -> Tensor:
    """Return a buffer as float64, 1-D; a complex element becomes two numbers."""
    return (torch.view_as_real(buffer.resolve_conj()) if buffer.is_complex() else buffer).double().flatten()


def _batches_seen(model: nn.Module) -> dict[int, float]:
    """Return the number of batches that each cumulative statistic averages, by the id of its tensor."""
    return {
        id(statistic): float(layer.num_batches_tracked)
        for layer in normalizations(model)
        if layer.momentum is None and layer.num_batches_tracked is not None
        for statistic in (layer.running_mean, layer.running_var)
    }


@contextlib.contextmanager
def preserve_modes(model: nn.Module) -> Iterator[None]:
    """Restore afterwards which modules are in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers afterwards, except those of synchronized layers, which see the rows of all workers."""
    saved = [
        (layer._buffers, name, buffer, buffer.clone())
        for layer in model.modules()
        if not isinstance(layer, SyncBatchNorm)
        for name, buffer in layer._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, value in saved:
                owner[name] = buffer.copy_(value)
