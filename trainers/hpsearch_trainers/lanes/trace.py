"""What a pass leaves behind beside what it gives: numbers in buffers, and random generators that have gone on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Traced"]


class Traced:
    """Takes passes back.

    Args:
        stacks: What a pass may change.
        generators: From which it may draw.
    """

    def __init__(self, stacks: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
        self._stacks = stacks
        self._generators = generators

    def now(self) -> list[Tensor]:
        """Return what all of them are now."""
        return [*(one.clone() for one in self._stacks), *(one.get_state() for one in self._generators)]

    @torch.no_grad()
    def go_back(self, then: Sequence[Tensor]) -> None:
        """Put all of them to what they were."""
        for stack, value in zip(self._stacks, then, strict=False):
            stack.copy_(value)
        for generator, state in zip(self._generators, then[len(self._stacks) :], strict=True):
            generator.set_state(state)
