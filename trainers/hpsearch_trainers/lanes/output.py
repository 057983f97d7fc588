"""What a model of all lanes gives, as a form and the tensors that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, leaves_of, map_leaves

__all__ = ["Form", "flatten_output"]


@dataclass(frozen=True, slots=True)
class Form:
    """A value with places where its LaneTensors were.

    Attributes:
        value: With a `TensorRange` for each LaneTensor.
        requires_grad: Of which tensors gradients are wanted.
    """

    value: Any
    requires_grad: Sequence[bool]

    @property
    def plain(self) -> bool:
        """Whether nothing is in it but LaneTensors, texts and numbers."""
        return all(isinstance(leaf, TensorRange | str | int | float | None) for leaf in leaves_of(self.value))

    def unflatten(self, tensors: Sequence[Tensor], generators: Generators) -> Any:
        """Return such a value of other tensors.

        Args:
            tensors: As many as it was made of, in their order.
            generators: A random generator of each lane.
        """
        ranges = [leaf for leaf in leaves_of(self.value) if isinstance(leaf, TensorRange)]
        made: dict[Any, LaneTensor] = {one: one.lane_tensor(tensors, generators) for one in ranges}
        return map_leaves(lambda leaf: made[leaf] if isinstance(leaf, TensorRange) else leaf, self.value)

    def detached(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the same numbers, where gradients of what is computed from them end."""
        return [
            tensor.detach().requires_grad_(requires_grad)
            for tensor, requires_grad in zip(tensors, self.requires_grad, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Of which tensors a LaneTensor is made: the stack, or one of each lane."""

    first: int
    count: int
    stacked: bool

    def lane_tensor(self, tensors: Sequence[Tensor], generators: Generators) -> LaneTensor:
        """Make it of them."""
        if self.stacked:
            return LaneTensor.of_stack(tensors[self.first], generators)
        return LaneTensor.of_slices(tensors[self.first : self.first + self.count], generators)


def flatten_output(value: Any) -> tuple[Form, list[Tensor]]:
    """Return the form of a value, and the tensors that it is made of: stacks of all lanes, or one of each."""
    tensors: list[Tensor] = []
    ranges: dict[int, TensorRange] = {}
    for leaf in leaves_of(value):
        if isinstance(leaf, LaneTensor) and id(leaf) not in ranges:
            parts = (leaf.stack,) if leaf.is_stack else leaf.slices
            ranges[id(leaf)] = TensorRange(len(tensors), len(parts), leaf.is_stack)
            tensors.extend(parts)
    form = map_leaves(lambda leaf: ranges.get(id(leaf), leaf), value)
    return Form(form, [tensor.requires_grad for tensor in tensors]), tensors
