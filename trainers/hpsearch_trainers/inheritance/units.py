"""How what goes through a child's network follows from what went through its parent's, at one place of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpsearch_trainers.architectures.shapes import Shape

__all__ = ["Flow", "Units", "unit_count"]


def unit_count(shape: Shape) -> int:
    """Give the channels of an image, the features of tokens, or the numbers of a row."""
    return shape[-1] if len(shape) == 2 else shape[0]


@dataclass(frozen=True, eq=False)
class Units:
    """Which of the parent's units, channels or features, each of the child's repeats."""

    source: Tensor
    """int64, for each of the child's the number of the parent's; -1: of none."""
    of: int
    """How many the parent has."""

    @classmethod
    def same(cls, count: int) -> Units:
        """Each is the parent's of the same number."""
        return cls(torch.arange(count), count)

    @classmethod
    def overlapping(cls, count: int, of: int) -> Units:
        """Each is the parent's of the same number as long as there are such."""
        source = torch.arange(count)
        return cls(torch.where(source < of, source, -1), of)

    @classmethod
    def repeated(cls, count: int, of: int, generator: torch.Generator) -> Units:
        """Each of the parent's once, and then some drawn from them (Net2WiderNet); fewer are the first ones."""
        drawn = torch.randint(of, (max(count - of, 0),), generator=generator)
        return cls(torch.cat([torch.arange(min(count, of)), drawn]), of)

    @classmethod
    def joined(cls, parts: Sequence[Units]) -> Units:
        """Those of several values that are put side by side, in both networks."""
        sources, before = [], 0
        for part in parts:
            sources.append(torch.where(part.source < 0, -1, part.source + before))
            before += part.of
        return cls(torch.cat(sources), before)

    @property
    def count(self) -> int:
        """How many the child has."""
        return len(self.source)

    @property
    def complete(self) -> bool:
        """Whether each repeats one."""
        return bool((self.source >= 0).all())

    @property
    def identical(self) -> bool:
        """Whether they are the parent's, in its order."""
        return self.count == self.of and torch.equal(self.source, torch.arange(self.of))

    @property
    def covering(self) -> bool:
        """Whether all of the parent's are there, and nothing else."""
        return self.complete and int(torch.bincount(self.source, minlength=self.of).count_nonzero()) == self.of

    def equals(self, other: Units) -> bool:
        """Whether both say the same."""
        return self.of == other.of and torch.equal(self.source, other.source)

    def taken(self, values: Tensor, axis: int = 0) -> Tensor:
        """Give what the parent has for its units to those of the child; of those that repeat none, anything."""
        return values.index_select(axis, self.source.clamp(min=0).to(values.device))

    def shares(self, rows: int, generator: torch.Generator) -> Tensor:
        """Divide each of the parent's units among those that repeat it.

        Equal shares, as in Net2WiderNet, leave repeated units alike for ever: each gets the same gradient, unless noise
        is added, which changes what the network computes. Shares that differ, and for each row otherwise, give them
        gradients that differ, and the sum is what it was.

        Returns:
            (rows, the child's units), of which those that repeat the same unit add up to 1.
        """
        index = self.source.clamp(min=0)
        if int(torch.bincount(index).max()) <= 1:
            return torch.ones(rows, self.count)
        drawn = torch.rand(rows, self.count, generator=generator) + 0.5
        drawn[:, self.source < 0] = 0.0
        whole = torch.zeros(rows, self.of).index_add_(1, index, drawn)
        return drawn / whole[:, index].clamp(min=1e-12)

    def spread(self, inner: Shape, parents_inner: Shape) -> Units:
        """Give the units of a row in which the places of each channel stand one behind the other.

        Args:
            inner: (height, width) of the child's image.
            parents_inner: Of the parent's.
        """
        height, width = parents_inner
        rows, columns = torch.arange(inner[0])[:, None], torch.arange(inner[1])[None, :]
        place = torch.where((rows < height) & (columns < width), rows * width + columns, -1).reshape(1, -1)
        known = (self.source[:, None] >= 0) & (place >= 0)
        return Units(
            torch.where(known, self.source[:, None] * height * width + place, -1).reshape(-1), self.of * height * width
        )

    def stacked(self, tokens: int, parents_tokens: int) -> Units:
        """Give the units of a row in which tokens stand one behind the other."""
        known = (torch.arange(tokens)[:, None] < parents_tokens) & (self.source[None, :] >= 0)
        source = torch.arange(tokens)[:, None] * self.of + self.source[None, :]
        return Units(torch.where(known, source, -1).reshape(-1), parents_tokens * self.of)


@dataclass(frozen=True, eq=False)
class Flow:
    """What is known of the child's values at a place, beside the parent's at the place that answers to it."""

    units: Units
    exact: bool
    """Whether each unit equals the one that it repeats, in eval mode."""
    nonnegative: bool = False
    """Whether no value is below 0, in either."""
    moments: tuple[Tensor, Tensor] | None = None
    """An estimate of each unit's mean and variance in the child, if there is one."""
