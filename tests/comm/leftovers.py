"""What a test may have left in /dev/shm, on a machine where other tests use Ray at the same time."""

from __future__ import annotations

from pathlib import Path

from tests.run_parts import PREFIX

_OF_OTHERS = ("plasma", "ray", "sem.", PREFIX)


def shared_memory_files() -> set[Path]:
    """Return the files in /dev/shm, except those of Ray, and the folders of other runs of the tests."""
    return {file for file in Path("/dev/shm").iterdir() if not file.name.startswith(_OF_OTHERS)}
