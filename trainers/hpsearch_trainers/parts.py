"""The parts of a training: the result of `Trainer.build`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset

from hpsearch_comm.errors import ConfigurationError

Data = DataLoader[Any] | Dataset[Any] | Sequence[Tensor]
"""Pairs of input and target: two tensors whose first dimension is the rows, a map-style data set of pairs, or a
DataLoader of such a data set. A DataLoader's batch size, sampler, collate function, drop_last and workers are used."""

_BATCH_NORMS = ("local", "sync")
_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_REPORTED = ("loss", "validation_loss", "learning_rate", "global_batch", "data_wait", "bytes_per_rank")


@dataclass(frozen=True, slots=True)
class Parts:
    """Model, optimizer, loss and data, and how they are combined.

    Raises:
        ConfigurationError: A value can't be used.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | Callable[[nn.Module], torch.optim.Optimizer]
    """An optimizer of the model's parameters, or a function that takes the model and returns an optimizer."""
    loss: Callable[[Any, Any], Tensor]
    """`loss(output, target)`: the mean over the rows of a batch."""
    train: Data
    validation: Data | None = None
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] = field(default_factory=dict)
    """Validation metrics by name: `metric(output, target)` returns a value for each row, or the mean over the rows."""
    batch_size: int = None  # type: ignore[assignment]
    """Rows of an optimizer step on one worker; see `Scaling` for several. None: the DataLoader's batch size, else 32.
    """
    validation_batch_size: int = None  # type: ignore[assignment]
    """None: the DataLoader's batch size, else 512."""
    schedule: Callable[[float], float] | None = None
    """Factor of the learning rate as a function of the epoch, which may be fractional; see `schedules`."""
    accumulate: int = 1
    """Number of backward passes of a step (gradient accumulation). A step's rows are divided among them."""
    clip_norm: float | None = None
    """Maximum norm of the gradient of a step (gradient clipping)."""
    precision: str | None = None
    """Mixed precision with torch.autocast: `bf16`, `fp16` or None. `bf16` needs a GPU of compute capability 8.0 or
    above, or a CPU. `fp16`, for older GPUs, scales the loss (torch.amp.GradScaler) and skips steps whose gradients
    overflow.
    """
    compile: bool | str = False
    """Whether to compile the model with torch.compile, or the name of the backend."""
    average: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. If given, the average is validated."""
    batch_norm: str = "local"
    """`local`: each worker normalizes over its own rows, and the running statistics are averaged before validation.
    `sync`: every worker normalizes over the rows of all workers."""
    freeze_batch_norm: float | None = None
    """Number of epochs after which the running statistics of batch normalization are frozen."""
    loaders: int | None = None
    """Number of loader processes for a map-style data set, at most the worker's number of cores; 0: the worker reads.
    None: the DataLoader's `num_workers`; without a DataLoader, the number of cores on a GPU, and 0 on the CPU."""
    measures: Mapping[str, Callable[[nn.Module], float]] = field(default_factory=dict)
    """Measurements of the model by name, such as `measures.latency`. They run after each validation, in eval mode. The
    mean over the workers is reported."""
    seed: int | None = None
    """Seed of the training's randomness, instead of the trial's own seed. Use one seed for several trials if they
    should differ only in their parameters. `build` must seed its own sampling, for example with `torch.manual_seed`."""
    pipeline: Sequence[nn.Module] | None = None
    """For the strategy `pipeline`: modules that compute the same as the model when called in sequence. They must use
    the model's parameters, but may be other modules than the model's own. Not needed for an nn.Sequential."""
    tensor: Mapping[str, str] | None = None
    """For the strategy `tensor`: how each layer is split, by the layer's name. An nn.Linear can be `colwise` (split by
    its outputs, which stay split), `rowwise` (split by its inputs, which must be split) or `gathered` (split by its
    outputs, which are gathered). An nn.Dropout is `dropout` if its inputs are split. Not needed for an nn.Sequential.
    """

    def __post_init__(self) -> None:
        model, optimizer = self.model, self.optimizer
        makes_one = callable(optimizer) and not isinstance(optimizer, nn.Module)
        _check_made("model", model, "an nn.Module", isinstance(model, nn.Module))
        _check_made(
            "optimizer",
            optimizer,
            "a torch.optim.Optimizer, or a function that makes one of the model",
            isinstance(optimizer, torch.optim.Optimizer) or makes_one,
        )
        _check_made("loss", self.loss, "a function of output and target", callable(self.loss))
        for name, data, default in (("batch_size", self.train, 32), ("validation_batch_size", self.validation, 512)):
            object.__setattr__(self, name, _batch_size(name, getattr(self, name), data, default))
        for name in ("batch_size", "validation_batch_size", "accumulate"):
            _check(name, getattr(self, name), least=1, integer=True)
        for name in ("loaders", "seed"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), least=0, integer=True)
        for name in ("clip_norm", "average", "freeze_batch_norm"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), least=0, integer=False)
        if self.average is not None and self.average >= 1:
            raise ConfigurationError(f"average must be a decay below 1, got {self.average!r}")
        if self.precision is not None and self.precision not in _PRECISIONS:
            raise ConfigurationError(f"precision must be bf16, fp16 or None, got {self.precision!r}")
        if not isinstance(self.compile, bool | str):
            raise ConfigurationError(f"compile must be True, False or the name of a backend, got {self.compile!r}")
        if self.batch_norm not in _BATCH_NORMS:
            raise ConfigurationError(f"batch_norm must be one of {', '.join(_BATCH_NORMS)}, got {self.batch_norm!r}")
        for kind, functions in (("metrics", self.metrics), ("measures", self.measures)):
            if not isinstance(functions, Mapping):
                raise ConfigurationError(f"{kind} must be functions by name, got {type(functions).__name__}")
            for name in functions:
                if name in _REPORTED or (kind == "measures" and name in self.metrics):
                    owner = "which a Trainer reports" if name in _REPORTED else "which is a metric, too"
                    raise ConfigurationError(f"a metric must have a name of its own, got {name!r}, {owner}")
        if self.pipeline is not None and not (
            isinstance(self.pipeline, Sequence) and all(isinstance(module, nn.Module) for module in self.pipeline)
        ):
            raise ConfigurationError(f"pipeline must be a list of modules, as they are called, got {self.pipeline!r}")
        if self.tensor is not None and not isinstance(self.tensor, Mapping):
            raise ConfigurationError(f"tensor must be styles by the names of layers, got {self.tensor!r}")
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConfigurationError("model must have a parameter to train, got none that requires a gradient")

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype for torch.autocast; None if passes run in the dtype of the weights."""
        return None if self.precision is None else _PRECISIONS[self.precision]

    def to(self, device: torch.device) -> None:
        """Move the model and other modules to a device; a loss, for example, may have class weights."""
        for part in (self.model, self.loss, *self.metrics.values(), *(self.pipeline or ())):
            if isinstance(part, nn.Module):
                part.to(device)


def _batch_size(name: str, size: int | None, data: Any, default: int) -> int:
    """Return the batch size of data. Check that a DataLoader's rows can be divided among workers.

    Raises:
        ConfigurationError: The DataLoader's rows can't be divided, or its batch size differs from `size`.
    """
    if not isinstance(data, DataLoader):
        return default if size is None else size
    if isinstance(data.dataset, IterableDataset):
        requirement = (
            "a map-style data set, as its rows are divided among workers by their numbers, got an IterableDataset"
        )
    elif type(data).__iter__ is not DataLoader.__iter__:
        requirement = (
            f"torch's own way through its batches, got {type(data).__name__} with an __iter__ of its own: change "
        )
        requirement += "batches in collate_fn, or rows in the data set"
    elif isinstance(data.sampler, DistributedSampler):
        requirement = "another sampler than DistributedSampler, as a Trainer divides the rows among workers itself"
    elif data.batch_size is None or type(data.batch_sampler) is not BatchSampler:
        requirement = "batch_size and a sampler, got a batch_sampler of its own or batch_size=None"
    elif size is not None and size != data.batch_size:
        requirement = f"the batch size that Parts says: leave {name} out, or make it {data.batch_size}, got {size}"
    else:
        return data.batch_size
    raise ConfigurationError(f"a DataLoader must have {requirement}")


def _check_made(name: str, value: Any, expected: str, is_valid: bool) -> None:
    if isinstance(value, type) and issubclass(value, nn.Module | torch.optim.Optimizer):
        kind = value.__name__
        raise ConfigurationError(f"{name} must be {expected}, got the class {kind}: create an instance, {kind}(...)")
    if not is_valid:
        raise ConfigurationError(
            f"{name} must be {expected}, got {type(value).__name__}: Parts takes model, optimizer and loss in this "
            "order"
        )


def _check(name: str, value: Any, *, least: float, integer: bool) -> None:
    kind = int if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
        raise ConfigurationError(
            f"{name} must be a {'whole ' if integer else ''}number of at least {least:g}, got {value!r}"
        )
