"""A cache on disk for files derived from data files, shared by all processes of the user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cached(source: Path, suffix: str, make: Callable[[BinaryIO], object]) -> Path:
    """Return the path of a cached file derived from `source`. Create it if it is missing or `source` has changed.

    Args:
        source: The data file.
        suffix: Suffix of the cached file's name.
        make: Writes the cached file. It writes to a temporary file, which is renamed when it is complete.

    Returns:
        A path in `$XDG_CACHE_HOME/hpsearch` or `~/.cache/hpsearch`.

    Raises:
        OSError: `source` doesn't exist, or the disk is full.
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
