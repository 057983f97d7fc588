"""Learning when a backward pass has ended, well or not.

Autograd calls back at the end of a graph's execution. Two things are not that simple. With reentrant checkpointing a
node of the backward pass runs a whole backward pass of its own, whose end is not the end: the callback passes itself on
to the pass outside. And a pass that raises calls nobody: but it drops the callback, which notices.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["BackwardEnd", "Follower"]


class Follower(Protocol):
    """Who wants to know.

    Attributes:
        number: Of the backward pass that is under way.
    """

    number: int

    def finish_backward(self) -> None:
        """The backward pass has come to its end; what this raises comes out of `loss.backward()`."""

    def abandon_backward(self) -> None:
        """The backward pass has raised."""


class BackwardEnd:
    """Tells the follower, once, of the end of the backward pass that runs where this is made."""

    __slots__ = ("_follower", "_hook", "_number")

    def __init__(self, follower: Follower) -> None:
        self._follower: Follower | None = follower
        self._number = follower.number
        self._hook: Any = None
        _call_at_the_end(self)

    def __call__(self) -> None:
        """Called by autograd at the end of a graph's execution."""
        around = torch._C._current_autograd_node()
        if around is not None:
            # A backward pass within that node of another one. After the node, callbacks go to the outer pass.
            self._hook = around.register_hook(self._step_out)
            return
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.finish_backward()

    def _step_out(self, *_gradients: Any) -> None:
        self._hook.remove()
        self._hook = None
        _call_at_the_end(self)

    def __del__(self) -> None:
        # On a GPU, a pass that raised may be taken apart when the next one has begun.
        if self._follower is not None and self._follower.number == self._number:
            self._follower.abandon_backward()


def _call_at_the_end(callback: BackwardEnd) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
