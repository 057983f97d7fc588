"""Whether a loss reads weights by itself, and not through the model's output alone, as a penalty on them does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.same_output import tensors_of

__all__ = ["of_output_alone"]


def of_output_alone(
    loss_of: Callable[[Any], Tensor], elsewhere: Collection[int], strategy: str
) -> Callable[[Any], Tensor]:
    """Return a loss that raises where it reads what other ranks hold: it would find a part of that, or nothing.

    Args:
        loss_of: Gives the loss of the model's output.
        elsewhere: The ids of the parameters that this rank doesn't have whole.
        strategy: That of the trial.
    """

    def checked(output: Any) -> Tensor:
        loss = loss_of(output)
        if _reaches(loss, tensors_of(output), elsewhere):
            raise ConfigurationError(
                f"under parallel.strategy {strategy} a loss must be computed of the model's output and the targets "
                "alone, got one that reads weights by itself, of which other ranks hold a part: leave a penalty on "
                "weights to the optimizer, as weight_decay, or take another strategy"
            )
        return loss

    return checked


def _reaches(loss: Tensor, output: Collection[Tensor], parameters: Collection[int]) -> bool:
    """Return whether a loss is computed of one of these parameters on a way that isn't through the output."""
    seen: set[Any] = {None, *(tensor.grad_fn for tensor in output)}
    reached: set[Any] = {loss.grad_fn} - seen
    while reached:
        node = reached.pop()
        if id(getattr(node, "variable", None)) in parameters:
            return True
        seen.add(node)
        reached |= {after for after, _ in node.next_functions} - seen
    return False
