"""What a test may have left in /dev/shm, on a machine where other tests use Ray at the same time."""

from __future__ import annotations

from pathlib import Path

_OF_RAY = ("plasma", "ray", "sem.")


def shared_memory_files() -> set[Path]:
    """Give the files in /dev/shm that aren't Ray's."""
    return {file for file in Path("/dev/shm").iterdir() if not file.name.startswith(_OF_RAY)}
