"""The relation of a child's activations to its parent's at a position of both networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpsearch_trainers.architectures.shapes import Shape


def unit_count(shape: Shape) -> int:
    """Return the number of channels of an image, features of tokens, or numbers of a row."""
    return shape[-1] if len(shape) == 2 else shape[0]


@dataclass(frozen=True, eq=False)
class Units:
    """Which of the parent's units (channels or features) each of the child's units repeats."""

    source: Tensor
    """Index of the parent's unit for each of the child's units, or -1 for none; int64, (the child's units,)."""
    of: int
    """Number of the parent's units."""

    @classmethod
    def identity(cls, count: int) -> Units:
        """Return units that each repeat the parent's unit of the same index."""
        return cls(torch.arange(count), count)

    @classmethod
    def overlapping(cls, count: int, of: int) -> Units:
        """Return units that each repeat the parent's unit of the same index, if it exists."""
        source = torch.arange(count)
        return cls(torch.where(source < of, source, -1), of)

    @classmethod
    def repeated(cls, count: int, of: int, generator: torch.Generator) -> Units:
        """Return the parent's units, then sampled ones (Net2WiderNet); if `count` is smaller, only the first ones."""
        drawn = torch.randint(of, (max(count - of, 0),), generator=generator)
        return cls(torch.cat([torch.arange(min(count, of)), drawn]), of)

    @classmethod
    def joined(cls, parts: Sequence[Units]) -> Units:
        """Return the units of several values that are concatenated in both networks."""
        sources, before = [], 0
        for units in parts:
            sources.append(torch.where(units.source < 0, -1, units.source + before))
            before += units.of
        return cls(torch.cat(sources), before)

    @property
    def count(self) -> int:
        """Number of the child's units."""
        return len(self.source)

    @property
    def complete(self) -> bool:
        """Whether each unit repeats a unit of the parent."""
        return bool((self.source >= 0).all())

    @property
    def identical(self) -> bool:
        """Whether the units are the parent's, in the same order."""
        return self.count == self.of and torch.equal(self.source, torch.arange(self.of))

    @property
    def covering(self) -> bool:
        """Whether the units repeat all of the parent's units, and each unit repeats one."""
        return self.complete and int(torch.bincount(self.source, minlength=self.of).count_nonzero()) == self.of

    @property
    def fate(self) -> str:
        """The fate of the weights of the parent's units: one of `FATES`."""
        return "same" if self.identical else "widened" if self.covering else "sliced"

    def equals(self, other: Units) -> bool:
        """Return whether both are equal."""
        return self.of == other.of and torch.equal(self.source, other.source)

    def gather(self, values: Tensor, axis: int = 0) -> Tensor:
        """Return the parent's values for each of the child's units; undefined for units that repeat none."""
        return values.index_select(axis, self.source.clamp(min=0).to(values.device))

    def shares(self, rows: int, generator: torch.Generator) -> Tensor:
        """Divide each of the parent's units among the units that repeat it.

        With equal shares, as in Net2WiderNet, repeated units stay equal: they get the same gradient, unless noise is
        added, which changes what the network computes. Different shares in each row have different gradients, and the
        same sum.

        Returns:
            (rows, the child's units). Shares of the units that repeat the same unit add up to 1.
        """
        index = self.source.clamp(min=0)
        if int(torch.bincount(index).max()) <= 1:
            return torch.ones(rows, self.count)
        drawn = torch.rand(rows, self.count, generator=generator) + 0.5
        drawn[:, self.source < 0] = 0.0
        totals = torch.zeros(rows, self.of).index_add_(1, index, drawn)
        return drawn / totals[:, index].clamp(min=1e-12)

    def spread(self, inner: Shape, parents_inner: Shape) -> Units:
        """Return the units of a flattened image, in which the pixels of each channel are consecutive.

        Args:
            inner: (height, width) of the child's image.
            parents_inner: (height, width) of the parent's image.
        """
        height, width = parents_inner
        rows, columns = torch.arange(inner[0])[:, None], torch.arange(inner[1])[None, :]
        pixel = torch.where((rows < height) & (columns < width), rows * width + columns, -1).reshape(1, -1)
        has_source = (self.source[:, None] >= 0) & (pixel >= 0)
        return Units(
            torch.where(has_source, self.source[:, None] * height * width + pixel, -1).reshape(-1),
            self.of * height * width,
        )

    def stacked(self, tokens: int, parents_tokens: int) -> Units:
        """Return the units of flattened tokens."""
        has_source = (torch.arange(tokens)[:, None] < parents_tokens) & (self.source[None, :] >= 0)
        source = torch.arange(tokens)[:, None] * self.of + self.source[None, :]
        return Units(torch.where(has_source, source, -1).reshape(-1), parents_tokens * self.of)


@dataclass(frozen=True, eq=False)
class Flow:
    """Information about the child's values at a position, compared with the parent's at the matching position."""

    units: Units
    exact: bool
    """Whether each unit equals the unit that it repeats, in eval mode."""
    nonnegative: bool = False
    """Whether all values are nonnegative in both networks."""
    moments: tuple[Tensor, Tensor] | None = None
    """An estimate of each unit's mean and variance in the child, or None."""
