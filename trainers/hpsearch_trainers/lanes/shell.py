"""A model of all lanes: one lane's modules, in which every tensor stands for one of each lane."""

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
    """Takes passes back.

    Args:
        stacks: What a pass may change.
        generators: From which it may draw.
    """

    def __init__(self, stacks: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
        self._stacks = stacks
        self._generators = generators

    def state(self) -> list[Tensor]:
        """Return what all of them are now."""
        return [*(source.clone() for source in self._stacks), *(source.get_state() for source in self._generators)]

    @torch.no_grad()
    def restore(self, states: Sequence[Tensor]) -> None:
        """Put all of them to what they were."""
        for stack, value in zip(self._stacks, states, strict=False):
            stack.copy_(value)
        for generator, state in zip(self._generators, states[len(self._stacks) :], strict=True):
            generator.set_state(state)


class Shell:
    """Takes the models' tensors into stacks; what the models have are parts of them from now on.

    Args:
        models: One of each lane, described alike.
        generators: A random generator of each lane.

    Attributes:
        module: Computes for all lanes what each model does.
        models: The models.
        generators: As given.
        parameters: The stacks of the parameters, (lanes, ...).

    Raises:
        NotFusible: The model can't be copied.
    """

    def __init__(self, models: Sequence[nn.Module], generators: Generators) -> None:
        self.models = models
        self.generators = generators
        tensors = {id(tensor): tensor for tensor in tensors_of(models[0])}
        try:
            # Its tensors are left out: they are replaced.
            self.module = copied(models[0], models[:1], dict(tensors))
        except MemoryError:
            raise
        except Exception as error:
            raise NotFusible(f"its model can't be copied: {error}") from error
        of_lanes = {id(first): [first, *others] for first, *others in zip(*map(tensors_of, models), strict=True)}
        # All stacks first: where there is no memory for one, none is taken over.
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
        """What another pack has others of, in the same order."""
        models_own = [tensor for _, lane_tensors in self._stacks for tensor in lane_tensors]
        return [*self.stacks, *models_own, self.generators, *(values for values, _, _ in self._settings)]

    @property
    def stacks(self) -> list[Tensor]:
        """Of the parameters and after them the buffers, (lanes, ...)."""
        return [stack for stack, _ in self._stacks]

    @property
    def pass_state(self) -> PassState:
        """What a pass may change."""
        return PassState([stack for stack, _ in self._stacks if not stack.requires_grad], self.generators)

    def read_settings(self) -> tuple[int, ...]:
        """Read rates of dropout, which may differ from lane to lane, from the models; return the way of each layer."""
        for values, name, modules in self._settings:
            values[:] = [getattr(module, name) for module in modules]
        return tuple(rate_kind(values) for values, _, _ in self._settings)

    def detached_lanes(self, models: Sequence[nn.Module | None]) -> list[int]:
        """Return the lanes that haven't what was taken over: model, modules, tensors, and their memory in the stacks.

        Args:
            models: What the first lanes have now.
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
        """Refuse what keeps something between two batches beside its tensors, of which there would be one for all.

        Raises:
            NotFusible: An attribute has changed, or a tensor has been put into another's place.
        """
        ids = {id(tensor) for tensor in self._lanes.values()}
        if any(id(tensor) not in ids for tensor in tensors_of(self.module)):
            raise NotFusible("its model puts other tensors in the place of its own")
        if describe(self.module) != self._described:
            raise NotFusible("its model changes attributes of its own while it trains")

    def set_training(self, training: bool) -> None:
        """Put the module and the models into this mode; a loss may look in which one its model is."""
        for model in (self.module, *self.models):
            model.train() if training else model.eval()

    def copies(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Copy the models' tensors, stack by stack; return each tensor, its memory and its old content."""
        copies = [(stack, stack.detach().clone(), lane_tensors) for stack, lane_tensors in self._stacks]
        return (
            parts
            for stack, clone, lane_tensors in copies
            for parts in zip(lane_tensors, stack.detach().unbind(), clone, strict=True)
        )

    def release(self, lane: int) -> None:
        """Copy a lane's model into memory of its own again."""
        for tensor in tensors_of(self.models[lane]):
            tensor.data = tensor.data.clone()


_OTHERWISE_IN_EVALUATION = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules that torch computes in another way in evaluation mode, if only plain tensors are involved."""


def _evaluated_by_lane(kind: type[nn.Module], modules: Sequence[nn.Module]) -> type[nn.Module]:
    """Return the class of a module of the shell that is computed by each lane's own in evaluation mode."""

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
    # The models' own tensors are parts that keep count of their changes by themselves: autograd would else take a
    # change of one lane's statistics for one of all.
    return LaneTensor.of_owned(stack, tensors, generators)
