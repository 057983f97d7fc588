"""What lies on a disk."""

from __future__ import annotations

from pathlib import Path


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory, by their paths relative to it."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}
