"""A process that is to have no GPU sees none: torch would take the first, and share it with whoever has it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["hide_gpus", "without_gpus"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def hide_gpus() -> None:
    """Let this process, and what it starts, see no GPU from here on; torch has looked for none yet."""
    os.environ[_VISIBLE] = ""


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """Let what runs inside see no GPU, where torch has looked for none yet."""
    before = os.environ.get(_VISIBLE)
    hide_gpus()
    try:
        yield
    finally:
        del os.environ[_VISIBLE]
        if before is not None:
            os.environ[_VISIBLE] = before
