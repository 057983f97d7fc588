"""What is made of a data file once, and found there by every process of the user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cached(source: Path, suffix: str, make: Callable[[BinaryIO], object]) -> Path:
    """Return the path of what is made of a file; it is made where it isn't there yet, or the file has changed since.

    Args:
        source: The file.
        suffix: Of the name of what is made.
        make: Writes it. It goes beside its place first and is moved there whole, so that nobody finds half of it.

    Returns:
        A path in `$XDG_CACHE_HOME/hpsearch` or `~/.cache/hpsearch`.

    Raises:
        OSError: There is no such file, or no room.
    """
    state = source.stat()
    name = hashlib.sha256(f"{source.resolve()} {state.st_mtime_ns} {state.st_size}".encode()).hexdigest()[:32]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpsearch"
    path = folder / f"{name}{suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=folder, suffix=".partial")
        try:
            with os.fdopen(descriptor, "wb") as target:
                make(target)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink()
            raise
    return path
