"""The weights that a child is given, as they are found layer by layer, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures.shapes import Shape
from hpsearch_trainers.inheritance.sides import Side
from hpsearch_trainers.inheritance.units import Flow, Units, unit_count

__all__ = ["ModulePath", "Transfer"]


@dataclass(frozen=True)
class ModulePath:
    """A module of one of the two networks, by its name."""

    side: Side
    path: str

    @property
    def module(self) -> nn.Module:
        """The module, without weights."""
        return self.side.modules[self.path]

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """What comes in, and what comes out."""
        return self.side.shapes[self.path]

    @property
    def units(self) -> tuple[int, int]:
        """How many units come in, and how many come out."""
        before, behind = self.shapes
        return unit_count(before), unit_count(behind)

    def inside(self, name: str) -> ModulePath:
        """Give the place of a child module."""
        return ModulePath(self.side, f"{self.path}.{name}" if self.path else name)


@dataclass
class Transfer:
    """What is found so far.

    Attributes:
        own: The child's weights as it was made.
        weights: The parent's.
        generator: Of all that is drawn.
        by_function: Whether layers are aligned by their functions alone.
        found: The child's new weights.
        fates: What became of them.
        reasons: Why outputs differ.
    """

    own: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    generator: torch.Generator
    by_function: bool = False
    found: dict[str, Tensor] = field(default_factory=dict)
    fates: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def put(self, place: ModulePath, name: str, value: Tensor, fate: str, known: Tensor | None = None) -> None:
        """Give the child a weight.

        Args:
            place: Of the module.
            name: In the module.
            value: Of the child's shape.
            fate: What became of it.
            known: Where the value counts, of a shape that broadcasts; the child's own stays elsewhere. None: all.
        """
        key = f"{place.path}.{name}"
        own = self.own[key]
        value = value.to(device=own.device, dtype=own.dtype)
        if known is not None and not bool(known.all()):
            value, fate = torch.where(known.to(own.device), value, own), "sliced"
        self.found[key], self.fates[key] = value, fate

    def of_parent(self, place: ModulePath, name: str) -> Tensor | None:
        """Give a weight of the parent's module, if it has one of this name."""
        return self.weights.get(f"{place.path}.{name}")

    def of_child(self, place: ModulePath, name: str) -> Tensor | None:
        """Give a weight of the child's module as it was made, if it has one of this name."""
        return self.own.get(f"{place.path}.{name}")

    def differs(self, place: ModulePath, why: str) -> None:
        """Say why outputs differ."""
        kind = type(place.module).__name__
        self.reasons.append(f"{place.path} ({kind}) {why}")

    def checked(self, flow: Flow, place: ModulePath, problems: Mapping[str, bool]) -> bool:
        """Say whether what goes out is exact: what comes in is, and there is no problem; the first one is told."""
        if not flow.exact:
            return False
        for why, there in problems.items():
            if there:
                self.differs(place, why)
                return False
        return True

    def fitting(self, flow: Flow, place: ModulePath, of: int) -> Flow:
        """Give a flow whose units are of as many of the parent's as it has here.

        Where a layer answers to none, what comes in may be of other units than what the parent's next layer took.
        """
        if flow.units.of == of:
            return flow
        assert not flow.exact
        return replace(flow, units=Units.overlapping(flow.units.count, of))

    def outward(self, count: int, of: int, wanted: Units | None) -> Units:
        """Choose which of the parent's units each of a layer's repeats: those that are wanted, or any."""
        if wanted is not None and (wanted.count, wanted.of) == (count, of):
            return wanted
        return Units.repeated(count, of, self.generator)
