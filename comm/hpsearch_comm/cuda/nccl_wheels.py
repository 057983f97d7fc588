"""Find the installed NCCL wheels, and conflicts between them.

NVIDIA ships NCCL as a separate distribution for each major version of CUDA, but all of them install
`nvidia/nccl/lib/libnccl.so.2`. With pip, the last one overwrites the others, and removing any of them removes the
library of all.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_LIBRARY = re.compile(r"libnccl\.so(\.\d+)*")
"""File names of the NCCL library."""

_NAME = re.compile(r"nvidia[-_.]+nccl[-_.]+cu\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NcclWheel:
    """An installed distribution that contains NCCL."""

    name: str
    """Name of the distribution, such as `nvidia-nccl-cu12`."""
    version: str
    files: tuple[str, ...]
    """Its files, relative to the installation folder."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Its libnccl files, relative to the installation folder; usually one."""
        return tuple(file for file in self.files if _LIBRARY.fullmatch(PurePosixPath(file).name))


def installed_nccl_wheels(search_path: Sequence[str] | None = None) -> tuple[NcclWheel, ...]:
    """Return the installed NCCL wheels, sorted by name.

    Args:
        search_path: Folders to search; None searches `sys.path`.
    """
    wheels: dict[str, NcclWheel] = {}
    for distribution in importlib.metadata.distributions(path=_folders(search_path)):
        name = distribution.metadata["Name"]
        if name is None or not _NAME.fullmatch(name):
            continue
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        files = tuple(sorted(file.as_posix() for file in distribution.files or ()))
        # Python imports the first one on the path.
        wheels.setdefault(canonical, NcclWheel(canonical, distribution.version, files))
    return tuple(wheels[name] for name in sorted(wheels))


def shared_files(wheels: Sequence[NcclWheel]) -> tuple[str, ...]:
    """Return the NCCL libraries that more than one of the wheels installs, by path."""
    owners = Counter(file for wheel in wheels for file in wheel.libraries)
    return tuple(sorted(file for file, count in owners.items() if count > 1))


def nccl_required_by_torch(search_path: Sequence[str] | None = None) -> str | None:
    """Return the requirement for an NCCL wheel in the installed torch's metadata, in pip's format.

    For example `nvidia-nccl-cu13==2.28.9`. None if torch is missing or requires none, such as a CPU build.
    """
    torch = next(iter(importlib.metadata.distributions(name="torch", path=_folders(search_path))), None)
    for requirement in [] if torch is None else torch.requires or ():
        wheel = requirement.partition(";")[0].strip()
        if _NAME.match(wheel):
            return re.sub(r"[\s()]", "", wheel)
    return None


def _folders(search_path: Sequence[str] | None) -> list[str]:
    return sys.path if search_path is None else list(search_path)
