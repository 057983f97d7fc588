"""Tensor parallelism: each rank holds a part of the model's linear layers; see `split_layers`.

All ranks read the same rows and compute the unsplit layers redundantly. So all have the same loss, which equals that of
a single process up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import CommError, ConfigurationError
from hpsearch_trainers.optimizers import clippable, parameters_of
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies.divided import (
    DividedModel,
    check_same_output,
    gradients_match,
    max_bytes,
    of_output_alone,
    output_of,
    outputs_match,
    training_pass,
)
from hpsearch_trainers.strategies.optimizer_shard import trains_elements
from hpsearch_trainers.strategies.split_layers import forward_of, gathered, plan_of, shard_of, split_dimensions
from hpsearch_trainers.strategies.stages import hooked
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, StrategyCapabilities, Trained

_NO_NORM = (
    "between layers that are colwise and rowwise a rank has some features only, of which no norm, softmax or hook can "
    "compute anything; let the layers there be gathered or summed"
)
_WHOLE = "its step looks at whole parameters, of which a rank has a part"


class TensorParallel(DividedModel):
    """Tensor parallelism over linear layers; see the module's docstring."""

    name: ClassVar[str] = "tensor"
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(
        refuses={
            **NO_FLOAT16,
            "compile": "each rank runs a part of each layer. Leave it out",
            "batch_norm": "every rank normalizes by all rows already. Leave it at `local`",
            "LARS": _WHOLE,
            "LAMB": _WHOLE,
            "Adafactor": _WHOLE,
            "Muon": _WHOLE,
        }
    )

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._divided = False

    def check(self, parts: Parts) -> None:
        """See `Strategy.check`. Also record `Parts.tensor`."""
        super().check(parts)
        self._named = parts.tensor

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's state, and plan how layers are split."""
        super().prepare(trained)
        self._check_optimizer(trained.optimizer)
        if any(not parameter.is_cpu for parameter in trained.model.parameters()):
            raise ConfigurationError(
                "parallel.strategy tensor splits layers on the CPU, got a model on a GPU: take another strategy there"
            )
        plan = plan_of(trained.model, self._named, self._group.size)
        layers = [(trained.model.get_submodule(name), style) for name, style in plan.items()]
        self._forwards = [(layer, forward_of(layer, style, self._group)) for layer, style in layers]
        dimensions = {
            f"{name}.{parameter_name}": dimension
            for name, style in plan.items()
            for parameter_name, dimension in split_dimensions(style).items()
        }
        models = [trained.model]
        if trained.average is not None:
            models.append(trained.average.module)
        named = [named_parameter for model in models for named_parameter in model.named_parameters()]
        self._sharded = [(parameter, dimensions[name]) for name, parameter in named if name in dimensions]
        self._sharded_ids = {id(parameter) for parameter, _ in self._sharded}
        self._replicated = [parameter for name, parameter in named if name not in dimensions]
        self._buffers = [buffer for model in models for buffer in model.buffers()]
        # A hook, maybe on one rank only, may need all features, but a rank has only some. Then compare the outputs.
        hooks = torch.tensor(any(map(hooked, trained.model.modules())))
        self._trusted = self._named is None and not self._group.allreduce(hooks, op="max")

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        if trains_elements(optimizer) or kind is torch.optim.SparseAdam or getattr(optimizer, "elementwise", False):
            return
        if kind.__name__ in self.capabilities.refuses:
            self.refuse(kind.__name__)
        raise ConfigurationError(
            "parallel.strategy tensor takes an optimizer that steps with each number of a parameter by itself, as a "
            f"rank has parts of them, got {kind.__name__}: if it does, give the class an attribute `elementwise = True`"
        )

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Compute a loss, and accumulate this rank's part of its gradient. Only rank 0 returns the loss; others 0."""
        if not self._divided:
            self._begin(inputs)
        of_output = of_output_alone(loss_of, self._sharded_ids, self.name)
        loss = super().backward(inputs, of_output, loss_weight, last=last)
        return loss if self._group.rank == 0 else torch.zeros_like(loss)

    def _begin(self, inputs: Any) -> None:
        """Split the layers in an epoch's first step. The first time, check that the split model computes the same."""
        if self._trusted:
            self._divide()
            return
        model = self.trained.model
        subject = "a split model" if self._named is None else "what Parts.tensor names"
        expected = output_of(model, inputs)
        reference, repeated = (training_pass(model, inputs, with_gradients=True) for _ in range(2))
        self._divide()
        with _fitting_together():
            check_same_output(output_of(model, inputs), expected, subject, _NO_NORM)
            outputs, gradients = training_pass(model, inputs, with_gradients=True)
        # Skip the check if the model is random in a way that can't be reproduced.
        if outputs_match(reference[0], repeated[0]) and not (
            outputs_match(outputs, reference[0]) and gradients_match(gradients, self._shards_of(reference[1]))
        ):
            raise ConfigurationError(
                f"{subject} must compute what the model does in training, too, got another output or gradient for the "
                "first rows, beyond rounding: where a rank has some features only, only an nn.Dropout that is named "
                "`dropout` may draw random numbers, no other parameters may be used, and weights that are split by "
                "their own layers alone; let the layers there be gathered or summed"
            )
        self._trusted = True

    def _shards_of(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return this rank's parts of tensors that are given for each parameter, such as gradients."""
        dimensions = {id(parameter): dimension for parameter, dimension in self._sharded}
        return [
            tensor
            if tensor is None or id(parameter) not in dimensions
            else shard_of(tensor, dimensions[id(parameter)], self._group)
            for parameter, tensor in zip(self.trained.model.parameters(), tensors, strict=True)
        ]

    def _divide(self) -> None:
        states = self.trained.optimizer.state
        for parameter, dimension in self._sharded:
            shape, parameter.grad = parameter.shape, None
            if parameter in states:  # whole on rank 0 and after a load; otherwise already this rank's part
                states[parameter] = {
                    name: shard_of(value, dimension, self._group) if _has_shape(value, shape) else value
                    for name, value in states[parameter].items()
                }
            parameter.data = shard_of(parameter.data, dimension, self._group)
        for layer, forward in self._forwards:
            layer.forward = forward
        self._divided = True

    def step(self) -> None:
        """Step with this rank's parts. The gradient is clipped by its norm over all ranks."""
        optimizer, limit = self.trained.optimizer, self.trained.clip_norm
        if limit is not None:
            trained = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
            sharded, replicated = (
                _square([parameter for parameter in trained if (id(parameter) in self._sharded_ids) is is_sharded])
                for is_sharded in (True, False)
            )
            norm = (self._group.allreduce(sharded, op="sum") + replicated).sqrt()
            nn.utils.clip_grads_with_norm_(clippable(trained), limit, norm)
        optimizer.step()

    def end_epoch(self) -> None:
        """Gather the model and its moving average on every rank, and the optimizer state on rank 0."""
        tensors = [parameter for parameter, _ in self._sharded] + self._replicated + self._buffers
        self._bytes = max_bytes(tensors, self.trained.optimizer, self._group)
        if not self._divided:
            return
        for layer, _ in self._forwards:
            del layer.forward
        states = self.trained.optimizer.state
        for parameter, dimension in self._sharded:
            shape, parameter.grad = parameter.shape, None
            if parameter in states:
                joined_state = {
                    name: gathered(value, dimension, self._group) if _has_shape(value, shape) else value
                    for name, value in states[parameter].items()
                }
                if self._group.rank == 0:  # it saves the state
                    states[parameter] = joined_state
            parameter.data = gathered(parameter.data, dimension, self._group)
        broadcast_tensors(self._replicated, self._group)  # rounding may differ between machines
        self._divided = False


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape


def _square(parameters: list[nn.Parameter]) -> Tensor:
    """Return the squared norm of the parameters' gradients."""
    norm = nn.utils.get_total_norm(parameter.grad for parameter in clippable(parameters) if parameter.grad is not None)
    return norm.double().square()


@contextlib.contextmanager
def _fitting_together() -> Iterator[None]:
    """Turn an error of the split model into a ConfigurationError: its split layers don't fit together."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, CommError):
            raise
        raise ConfigurationError(
            f"what is split must fit together, but the split model can't be computed: {error}"
        ) from error
