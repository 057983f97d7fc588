"""A model of all lanes: a copy of one lane's modules, in which every tensor is a LaneTensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes.dropout import rate_kind
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, PerLane, by_lane
from hpsearch_trainers.lanes.models import copied, modules_of, tensors_of
from hpsearch_trainers.lanes.shape_key import describe, is_per_lane


class PassState:
    """The state that a pass may change.

    Args:
        stacks: Tensors that a pass may change.
        generators: Random generators that a pass may use.
    """

    def __init__(self, stacks: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
        self._stacks = stacks
        self._generators = generators

    def state(self) -> list[Tensor]:
        """Return copies of the current stacks and generator states."""
        return [*(source.clone() for source in self._stacks), *(source.get_state() for source in self._generators)]

    @torch.no_grad()
    def restore(self, states: Sequence[Tensor]) -> None:
        """Restore stacks and generators from the result of `state`."""
        for stack, value in zip(self._stacks, states, strict=False):
            stack.copy_(value)
        for generator, state in zip(self._generators, states[len(self._stacks) :], strict=True):
            generator.set_state(state)


class Shell:
    """Moves the models' tensors into stacks; the models' own tensors become views of the stacks.

    Args:
        models: The model of each lane, with equal descriptions.
        generators: Random generator of each lane.

    Attributes:
        module: The module that computes all lanes.
        models: The models.
        generators: The argument.
        parameters: The stacks of the parameters, (lanes, ...).

    Raises:
        NotFusible: The model can't be copied.
    """

    def __init__(self, models: Sequence[nn.Module], generators: Generators) -> None:
        self.models = models
        self.generators = generators
        tensors = {id(tensor): tensor for tensor in tensors_of(models[0])}
        try:
            # Don't copy the tensors, because they are replaced.
            self.module = copied(models[0], models[:1], dict(tensors))
        except MemoryError:
            raise
        except Exception as error:
            raise NotFusible(f"its model can't be copied: {error}") from error
        of_lanes = {id(first): [first, *others] for first, *others in zip(*map(tensors_of, models), strict=True)}
        # Allocate all stacks first, so that no model is changed if memory runs out.
        stacks = {
            name: torch.stack([tensor.detach() for tensor in lane_tensors]) for name, lane_tensors in of_lanes.items()
        }
        try:
            self._stack_models(of_lanes, stacks)
        except BaseException:
            for lane in range(len(models)):
                self.release(lane)
            raise

    def _stack_models(self, of_lanes: Mapping[int, Sequence[Tensor]], stacks: Mapping[int, Tensor]) -> None:
        self._lanes = {
            name: _move_into_stack(lane_tensors, stacks[name], self.generators)
            for name, lane_tensors in of_lanes.items()
        }
        self._stacks = [(stacks[name], lane_tensors) for name, lane_tensors in of_lanes.items()]
        self._addresses = [[(tensor, tensor.data_ptr()) for tensor in tensors_of(model)] for model in self.models]
        self._modules = [modules_of(model) for model in self.models]
        self._settings: list[tuple[PerLane, str, Sequence[nn.Module]]] = []
        everywhere = zip(*(modules_of(model) for model in (self.module, *self.models)), strict=True)
        for module, *modules in everywhere:
            for tensors_by_name in (module._parameters, module._buffers):
                for name, tensor in tensors_by_name.items():
                    if tensor is not None:
                        tensors_by_name[name] = self._lanes[id(tensor)]
            for name in [name for name in vars(module) if is_per_lane(module, name)]:
                setattr(module, name, PerLane(getattr(one, name) for one in modules))
                self._settings.append((getattr(module, name), name, modules))
            if isinstance(module, _OTHERWISE_IN_EVALUATION):
                module.__class__ = _evaluated_by_lane(type(module), modules)  # type: ignore[assignment]
        self.parameters = [one.stack for one in self._lanes.values() if one.requires_grad]
        self._described = describe(self.module)

    def __call__(self, inputs: LaneTensor) -> object:
        """Compute the output of each lane."""
        return self.module(inputs)

    @property
    def roles(self) -> list[object]:
        """Objects specific to this pack; another pack's roles have the same order."""
        models_own = [tensor for _, lane_tensors in self._stacks for tensor in lane_tensors]
        return [*self.stacks, *models_own, self.generators, *(values for values, _, _ in self._settings)]

    @property
    def stacks(self) -> list[Tensor]:
        """The stacks of the parameters followed by those of the buffers, (lanes, ...)."""
        return [stack for stack, _ in self._stacks]

    @property
    def pass_state(self) -> PassState:
        """The state that a pass may change."""
        return PassState([stack for stack, _ in self._stacks if not stack.requires_grad], self.generators)

    def read_settings(self) -> tuple[int, ...]:
        """Read the lanes' dropout rates from the models; return the kind of computation of each dropout layer."""
        for values, name, modules in self._settings:
            values[:] = [getattr(module, name) for module in modules]
        return tuple(rate_kind(values) for values, _, _ in self._settings)

    def detached_lanes(self, models: Sequence[nn.Module | None]) -> list[int]:
        """Return the lanes whose model, modules or tensors were replaced, or whose tensors left the stacks.

        Args:
            models: The current models of the first lanes.
        """
        return [lane for lane, model in enumerate(models) if not self._is_intact(lane, model)]

    def _is_intact(self, lane: int, model: nn.Module | None) -> bool:
        if model is not self.models[lane]:
            return False
        present, addresses = tensors_of(model), self._addresses[lane]
        if len(present) != len(addresses) or [*map(id, modules_of(model))] != [*map(id, self._modules[lane])]:
            return False
        pairs = zip(present, addresses, strict=True)
        return all(tensor is expected and tensor.data_ptr() == address for tensor, (expected, address) in pairs)

    def check_unchanged(self) -> None:
        """Check that the model keeps no state between batches other than its tensors; lanes would share that state.

        Raises:
            NotFusible: An attribute has changed, or a tensor was replaced.
        """
        ids = {id(tensor) for tensor in self._lanes.values()}
        if any(id(tensor) not in ids for tensor in tensors_of(self.module)):
            raise NotFusible("its model puts other tensors in the place of its own")
        if describe(self.module) != self._described:
            raise NotFusible("its model changes attributes of its own while it trains")

    def set_training(self, training: bool) -> None:
        """Set the training mode of the module and the models; a loss may read its model's mode."""
        for model in (self.module, *self.models):
            model.train() if training else model.eval()

    def copies(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Copy the models' tensors, stack by stack; yield each tensor, its memory and its old content."""
        copies = [(stack, stack.detach().clone(), lane_tensors) for stack, lane_tensors in self._stacks]
        return (
            parts
            for stack, clone, lane_tensors in copies
            for parts in zip(lane_tensors, stack.detach().unbind(), clone, strict=True)
        )

    def release(self, lane: int) -> None:
        """Copy a lane's model into separate memory."""
        for tensor in tensors_of(self.models[lane]):
            tensor.data = tensor.data.clone()


_OTHERWISE_IN_EVALUATION = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules for which torch has a fast path in eval mode, which needs plain tensors."""


def _evaluated_by_lane(kind: type[nn.Module], modules: Sequence[nn.Module]) -> type[nn.Module]:
    """Return a class for a shell's module that calls each lane's own module in eval mode."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs) if self.training else by_lane(evaluated, (args, kwargs))

    def evaluated(lane: int, arguments: tuple[Sequence[Any], dict[str, Any]]) -> Any:
        return modules[lane].eval()(*arguments[0], **arguments[1])

    return type(kind.__name__, (kind,), {"forward": forward})


def _move_into_stack(tensors: Sequence[Tensor], stack: Tensor, generators: Generators) -> LaneTensor:
    first = tensors[0]
    for tensor, part in zip(tensors, stack.unbind(), strict=True):
        tensor.data = part
    if first.requires_grad:
        stack.requires_grad_()
        return LaneTensor.of_parameter(stack, generators)
    # The models' tensors have separate version counters: otherwise autograd would take a change of one lane's
    # statistics for a change of all lanes.
    return LaneTensor.of_owned(stack, tensors, generators)
