"""How much of a disk files and folders take."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

__all__ = ["size_of", "sizes_beside"]


def size_of(paths: Iterable[Path]) -> int:
    """Return the bytes of a disk's blocks that files and folders take, as `du` does, with all that is in them.

    Thousands of small files take many times the bytes that are in them. Links count as what they are, not as what they
    lead to.
    """
    total = 0
    folders: list[str] = []
    for path in paths:
        total += _bytes(path)
        if path.is_dir() and not path.is_symlink():
            folders.append(os.fspath(path))
    while folders:  # there may be tens of thousands, each of which may be gone by now: each is looked at once
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                total += _bytes(entry)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return total


@contextlib.contextmanager
def sizes_beside(paths: Sequence[Path]) -> Iterator[Callable[[], list[int]]]:
    """Add up the bytes of each path in a process beside this one, which meanwhile does something else.

    It isn't a thread: each of its thousands of short calls would wait for this one to let go of the interpreter.

    Yields:
        What waits for the answer, and gives the bytes of each path.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="ascii") as answer:
                json.dump([size_of([path]) for path in paths], answer)
        finally:
            os._exit(0)  # what this process has to do at its end is the other one's
    os.close(writing)
    try:
        with os.fdopen(reading, encoding="ascii") as answer:
            yield lambda: _read(answer.read(), paths)
    finally:
        os.waitpid(child, 0)


def _read(answer: str, paths: Sequence[Path]) -> list[int]:
    """Read an answer; where its process came to harm, there is none, and it is found here."""
    sizes: list[int] = json.loads(answer) if answer.endswith("]") else [size_of([path]) for path in paths]
    return sizes


def _bytes(entry: Path | os.DirEntry[str]) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(entry).st_blocks * 512  # POSIX leaves the unit open, but all systems count so
    return 0
