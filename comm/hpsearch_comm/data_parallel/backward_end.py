"""Learning when a backward pass has ended, well or not.

Autograd calls back at the end of a graph's execution. Two things are not that simple. With reentrant checkpointing a
node of the backward pass runs a whole backward pass of its own, whose end is not the end: the callback passes itself on
to the pass outside. And a pass that raises calls nobody: but it drops the callback, which notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["BackwardEnd"]


class BackwardEnd:
    """Tells, once, of the end of the backward pass that runs where this is made.

    Args:
        finish: Called when the pass has come to its end; what this raises comes out of `loss.backward()`.
        abandon: Called when it has raised. On a GPU, a pass that raised may be taken apart when the next has begun.
    """

    __slots__ = ("_abandon", "_finish", "_hook")

    def __init__(self, finish: Callable[[], None], abandon: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._abandon = abandon
        self._hook: Any = None
        _call_at_the_end(self)

    def __call__(self) -> None:
        """Called by autograd at the end of a graph's execution."""
        around = torch._C._current_autograd_node()
        if around is not None:
            # A backward pass within that node of another one. After the node, callbacks go to the outer pass.
            self._hook = around.register_hook(self._step_out)
            return
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _step_out(self, *_gradients: Any) -> None:
        self._hook.remove()
        self._hook = None
        _call_at_the_end(self)

    def __del__(self) -> None:
        if self._finish is not None:
            self._abandon()


def _call_at_the_end(callback: BackwardEnd) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
