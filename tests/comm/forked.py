"""Processes for tests, forked from a server that has imported torch: each starts in milliseconds.

The test process itself can't be forked safely: other tests may have started threads in it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["forked"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["hpsearch_comm"])


@contextlib.contextmanager
def forked(task: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run `task(channel, *arguments)` in a process of its own; gives the process, and the other end of the channel.

    A process that is still there when the block ends is killed.
    """
    ours, theirs = _context.Pipe()
    process = _context.Process(target=task, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
