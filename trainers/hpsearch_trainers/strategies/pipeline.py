"""Pipeline parallelism: each rank holds a stage of the model, and a step's micro-batches pass through the stages.

The schedule is GPipe (Huang et al. 2019, arXiv:1811.06965), or 1F1B: one forward, one backward (PipeDream, Narayanan et
al. 2019) with a flush. With the flush, all passes of a step run before the weights change. The gradient is that of the
whole batch, and the step equals that of a single process up to rounding.

All ranks read the same rows. The first rank uses the inputs; the last rank uses the targets and computes the loss.

The order of the forward and backward passes of a step over time, for three stages and four micro-batches (F forward, B
backward):

    gpipe   0   F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3      all forward, then all backward (Huang et al. 2019, figure 2c)
            1   .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
            2   .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .

    1f1b    0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3      one forward, one backward, each as soon as possible
            1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .       (Narayanan et al. 2019, figure 4, with the step's flush)
            2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

Both take the same time, but differ in memory. With `gpipe`, a stage stores the activations of all micro-batches. With
`1f1b`, it stores at most as many as there are stages from it to the last one. The backward passes have the same order,
so both produce the same result, bit for bit.

The modules of a pipeline may be other modules than the model's own. Those use the model's training mode, and must not
have state that training changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpsearch_comm import Group, Handle
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.header import DTYPES
from hpsearch_trainers.buffers import digest
from hpsearch_trainers.host_memory import empty_on_host, to_host
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies.common_state import gather_worker_states
from hpsearch_trainers.strategies.divided import (
    DividedModel,
    check_same_output,
    clip_by_global_norm,
    max_bytes,
    of_output_alone,
    output_of,
    outputs_match,
    training_pass,
)
from hpsearch_trainers.strategies.stages import Stages, cut
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Options, StrategyCapabilities, Trained

_NOTHING = -1
"""Code for None, instead of a dtype."""
_AS_BEFORE = 0
"""Length that is sent if the description equals that of the previous message."""


class Channel:
    """Sends lists of tensors and None to another rank, and receives such lists from it.

    A list is sent as the length of its description, the description, and the tensors. A description that equals the
    previous one isn't sent again.

    Args:
        group: A group with both ranks.
        peer: The other rank.
        device: The device of received tensors.
    """

    def __init__(self, group: Group, peer: int, device: torch.device) -> None:
        self._group = group
        self._peer = peer
        self._device = device
        self._sent_description: list[int] = []
        self._received_description: list[int] = []
        self._pending: list[Handle[Tensor]] = []

    def send(self, tensors: Sequence[Tensor | None]) -> None:
        """Send tensors, which mustn't change until `flush`."""
        description = [number for tensor in tensors for number in _described(tensor)]
        if description == self._sent_description:
            self._start(torch.tensor([_AS_BEFORE], device="cpu"))
        else:
            self._start(torch.tensor([len(description)], device="cpu"))
            self._start(torch.tensor(description, device="cpu"))
            self._sent_description = description
        for tensor in to_host([tensor for tensor in tensors if tensor is not None]):
            self._start(tensor)

    def flush(self) -> None:
        """Wait until all tensors have been sent, so that they may change."""
        while self._pending:
            self._pending.pop(0).wait()

    def receive(self) -> list[Tensor | None]:
        """Receive tensors. They require a gradient if the sent ones do."""
        length = int(self._next(torch.empty(1, dtype=torch.int64, device="cpu")))
        if length != _AS_BEFORE:
            self._received_description = self._next(torch.empty(length, dtype=torch.int64, device="cpu")).tolist()
        numbers = iter(self._received_description)
        return [self._received(kind, numbers) for kind in numbers]

    def _received(self, kind: int, numbers: Iterator[int]) -> Tensor | None:
        if kind == _NOTHING:
            return None
        needs_gradient, dimensions = next(numbers), next(numbers)
        shape = [next(numbers) for _ in range(dimensions)]
        tensor = self._next(empty_on_host(shape, DTYPES[kind], self._device)).to(self._device)
        return tensor.requires_grad_(bool(needs_gradient))

    def _start(self, tensor: Tensor) -> None:
        self._pending.append(self._group.send_async(tensor, self._peer))

    def _next(self, tensor: Tensor) -> Tensor:
        return self._group.recv(tensor, self._peer)


def _described(tensor: Tensor | None) -> list[int]:
    if tensor is None:
        return [_NOTHING]
    return [DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape]


def unpacked(output: Any, stage: int) -> list[Tensor]:
    """Return the tensors in a stage's output.

    Raises:
        ConfigurationError: The output is something else.
    """
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.layout is torch.strided for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise ConfigurationError(
            f"a stage of a pipeline must give a tensor, or a tuple of tensors, for the next one; stage {stage} gives "
            f"{kinds or 'none'}: cut the model elsewhere, by naming other modules in Parts.pipeline"
        )
    return tensors


def packed(tensors: Sequence[Tensor]) -> Any:
    """Return the argument of the next stage."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


FORWARD, BACKWARD = "forward", "backward"
SCHEDULES = ("gpipe", "1f1b")


def order_of(schedule: str, stages: int, stage: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the passes of a stage in order, each with the index of its micro-batch.

    Args:
        schedule: One of `SCHEDULES`.
        stages: Number of stages of the pipeline.
        stage: Index of the stage, from 0.
        micro_batches: Number of micro-batches of the step.
    """
    ahead = micro_batches if schedule == "gpipe" else min(stages - 1 - stage, micro_batches)
    order = [(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append((FORWARD, ahead + number))
        order.append((BACKWARD, number))
    return order


_PER_STAGE = 2
"""Default number of micro-batches per stage."""


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    inputs: Any
    loss_of: Callable[[Any], Tensor]
    loss_weight: float


@dataclass(frozen=True, slots=True)
class _ForwardPass:
    """Tensors of a micro-batch's forward pass that its backward pass needs."""

    inputs: list[Tensor]
    """Received from the previous stage."""
    outputs: list[Tensor]
    """Sent to the next stage; on the last stage, the loss times its weight."""


class Pipeline(DividedModel):
    """Pipeline parallelism over the stages of a model; see the module's docstring."""

    name: ClassVar[str] = "pipeline"
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(
        refuses={
            **NO_FLOAT16,
            "compile": "each rank runs a part of the model. Leave it out",
            "batch_norm": "layers see one micro-batch at a time. Leave it at `local`, or take another normalization",
            "shared parameters": "copies in two stages would go apart. Untie the layers that share it",
        }
    )

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._schedule = options.choice("schedule", SCHEDULES)
        self.passes = options.integer("micro_batches", _PER_STAGE * self._group.size)
        self._micro_batches: list[_MicroBatch] = []
        self._is_whole = True
        self.stream = self._group.rank  # each stage has its own random numbers

    def check(self, parts: Parts) -> None:
        """See `Strategy.check`. Also record `Parts.pipeline`."""
        super().check(parts)
        self._named = parts.pipeline
        self._freezes = math.inf if parts.freeze_batch_norm is None else parts.freeze_batch_norm

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's state, and cut the model into stages."""
        super().prepare(trained)
        self._checked = False
        rank, size = self._group.rank, self._group.size
        device = self._device = parameters_of(trained.optimizer)[0].device
        for module in self._named or ():
            module.to(device)  # for modules that aren't the model's own
        stages = cut(trained.model, self._named, size)
        if stages.shared:
            self.refuse("shared parameters", stages.shared)
        self._all_layers = [layer for stage in stages.layers for layer in stage]
        self._layers = stages.layers[rank]
        inside = set(trained.model.modules())
        self._extra_modules = [
            module for layer in self._all_layers for module in layer.modules() if module not in inside
        ]
        self._in_place = any(getattr(module, "inplace", False) for module in self._layers[0].modules())
        self._before = None if rank == 0 else Channel(self._group, rank - 1, device)
        self._after = None if rank == size - 1 else Channel(self._group, rank + 1, device)
        self._divide(trained, stages)

    def _divide(self, trained: Trained, stages: Stages) -> None:
        models = [trained.model]
        if trained.average is not None:
            models.append(trained.average.module)
        self._tensors = partial(_with_ranks, models, stages)
        # A meta tensor keeps shape and strides without memory.
        self._remote = [
            (tensor, torch.empty_like(tensor, device="meta", requires_grad=False))
            for tensor, rank in self._tensors()
            if rank != self._group.rank and isinstance(tensor, nn.Parameter)
        ]
        self._elsewhere = {id(tensor) for tensor, _ in self._remote}

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch. The model is whole until the first step."""
        self._is_whole = True
        self._first = True
        self._is_frozen = epoch >= self._freezes
        self._buffers_before = self._buffer_marks()

    def start_step(self, rows: int) -> None:
        """Start a step. Modules that aren't the model's own get its training mode."""
        super().start_step(rows)
        for module in self._extra_modules:
            module.training = self.trained.model.training and not (self._is_frozen and isinstance(module, _BatchNorm))

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Queue a micro-batch; run the queue when it is full. The last call of a run returns the losses of all."""
        if self._is_whole:
            self._begin(inputs)
        of_output = of_output_alone(loss_of, self._elsewhere, self.name)
        self._micro_batches.append(_MicroBatch(inputs, of_output, loss_weight))
        if last or len(self._micro_batches) == self.passes:
            waiting, self._micro_batches = self._micro_batches, []
            return self._run(waiting) / loss_weight
        return torch.zeros((), device=self._device)

    def _begin(self, inputs: Any) -> None:
        """Release the memory of the other stages, in an epoch's first step."""
        self._is_whole = False
        if self._named is not None and not self._checked:
            self._compare(nn.Sequential(*self._all_layers), inputs)
        self._checked = True
        for tensor, _ in self._remote:
            self.trained.optimizer.state.pop(tensor, None)
            tensor.data = tensor.new_empty(0)

    def _compare(self, parts: nn.Module, inputs: Any) -> None:
        model, subject = self.trained.model, "what Parts.pipeline names"
        advice = "see that every step of the model's forward is in it, in order"
        expected = output_of(model, inputs)
        check_same_output(output_of(parts, inputs), expected, subject, advice)
        (outputs, _), (repeated, _), (outputs_of_parts, _) = (
            training_pass(module, inputs, with_gradients=False) for module in (model, model, parts)
        )
        if outputs_match(outputs, repeated):  # otherwise the model is random in a way that can't be reproduced
            check_same_output(outputs_of_parts, outputs, f"in training, too, {subject}", f"{advice}, dropout as well")

    def _run(self, micro_batches: Sequence[_MicroBatch]) -> Tensor:
        """Run micro-batches through this stage, forward and backward; return the sum of their weighted losses.

        The sum is 0 except on the last stage.
        """
        total = torch.zeros((), device=self._device)
        under_way: dict[int, _ForwardPass] = {}
        for direction, number in order_of(self._schedule, self._group.size, self._group.rank, len(micro_batches)):
            if direction == FORWARD:
                passed = under_way[number] = self._forward(micro_batches[number])
                if self._after is None:
                    total += passed.outputs[0].detach()
            else:
                self._backward(under_way.pop(number))
        for channel in (self._before, self._after):
            if channel is not None:
                channel.flush()
        return total

    def _forward(self, micro_batch: _MicroBatch) -> _ForwardPass:
        received: list[Tensor] = []
        output = micro_batch.inputs
        if self._before is not None:
            received = [tensor for tensor in self._before.receive() if tensor is not None]
            output = packed([tensor.clone() for tensor in received] if self._in_place else received)
        with self.trained.autocast():
            for layer in self._layers:
                output = layer(output)
            if self._after is None:
                loss = micro_batch.loss_of(output)
                return _ForwardPass(
                    received, [loss if micro_batch.loss_weight == 1.0 else loss * micro_batch.loss_weight]
                )
        outputs = unpacked(output, self._group.rank)
        self._after.send(outputs)
        return _ForwardPass(received, outputs)

    def _backward(self, passed: _ForwardPass) -> None:
        if self._after is None:
            passed.outputs[0].backward()  # type: ignore[no-untyped-call]
        else:
            pairs = zip(passed.outputs, self._after.receive(), strict=True)
            needed = [(output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad]
            if needed:
                torch.autograd.backward([output for output, _ in needed], [gradient for _, gradient in needed])
        if self._before is not None:
            self._before.send([tensor.grad for tensor in passed.inputs])

    def step(self) -> None:
        """Step with this stage's parameters. The gradient is clipped by its norm over all stages."""
        optimizer, limit = self.trained.optimizer, self.trained.clip_norm
        if limit is not None:
            clip_by_global_norm(parameters_of(optimizer), limit, self._group)
        optimizer.step()
        if self._first:
            self._first = False
            self._check_buffers()

    def end_epoch(self) -> None:
        """Gather the model and its moving average on every rank, and the optimizer state on rank 0."""
        self._check_buffers()
        tensors = (tensor for tensor, rank in self._tensors() if rank == self._group.rank)
        self._bytes = max_bytes(tensors, self.trained.optimizer, self._group)
        if not self._is_whole:
            self._gather()
        self._is_whole = True

    def _check_buffers(self) -> None:
        """Check that training hasn't changed the buffers of modules that aren't the model's own."""
        changed = sorted(self._buffer_marks() - self._buffers_before)
        if changed:
            raise ConfigurationError(
                "modules of Parts.pipeline that aren't the model's own must keep nothing that training changes, as it "
                f"would be neither saved nor validated with, got another {changed[0].rpartition(' ')[0]}: let them "
                "hold the model's own modules, such as its batch normalization"
            )

    def _buffer_marks(self) -> set[str]:
        inside = set(map(id, self.trained.model.buffers()))
        return {
            f"{name} of {type(module).__name__} {number} {digest(buffer.to_dense())}"
            for number, module in enumerate(self._extra_modules)
            for name, buffer in module.named_buffers(recurse=False)
            if id(buffer) not in inside
        }

    def _gather(self) -> None:
        for tensor, layout in self._remote:
            tensor.data = torch.empty_like(layout, device=tensor.device)
        tensors = list(self._tensors())
        for root in range(self._group.size):
            broadcast_tensors((tensor for tensor, rank in tensors if rank == root), self._group, root)
        state, parameters = self.trained.optimizer.state, parameters_of(self.trained.optimizer)
        own = {index: state[parameter] for index, parameter in enumerate(parameters) if parameter in state}
        for states in gather_worker_states(own, self._group, self._device):
            state.update({parameters[index]: values for index, values in states.items()})


def _with_ranks(models: Sequence[nn.Module], stages: Stages) -> Iterator[tuple[Tensor, int]]:
    """Yield the current parameters and buffers of models with the same layers, each with the rank that trains it."""
    for model in models:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in stages.owner:
                yield tensor, stages.owner[name]
