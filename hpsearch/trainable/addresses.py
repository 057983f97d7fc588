"""Addresses of checkpoints: a directory, or an entry of a pack (a file with the checkpoints of several trials).

The journal stores addresses relative to the study's directory. An address is either the path of the checkpoint's
directory, `trials/00012/3/hpsearch-checkpoint-9`, or the path of a pack, `#`, and the path of the directory to which
the checkpoint is extracted on demand: `trials/packs/00007-2-9x16.zip#trials/00012/3/hpsearch-checkpoint-9`. If that
directory exists, the checkpoint is read there, otherwise from the pack.

The name of a pack contains its first checkpoint and its number of checkpoints. Code that has only some of the addresses
can therefore detect that the pack contains other checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PACKS = "trials/packs"
"""Directory of the packs, relative to the study's directory."""

_PATH = re.compile(r"trials/(\d+)/(\d+)/hpsearch-checkpoint-(\d+)")
_NAME = r"\d+-\d+-\d+x(\d+)\.zip"
_PACK = re.compile(rf"{_NAME}|\.{_NAME}\.part")
_IN_PACK = re.compile(rf"(|.*/)({PACKS}/{_NAME})#(trials/\d+/\d+/hpsearch-checkpoint-\d+)", re.DOTALL)
"""Groups: the study's directory (empty in a relative address), the pack's path, its number of checkpoints, and the path
of the checkpoint's own directory."""


def pack_of_all(paths: Sequence[str]) -> str:
    """Return the path of a pack of these checkpoints. It is unique, since no attempt runs twice.

    Args:
        paths: Directories of the checkpoints, relative to the study's directory.
    """
    first = _PATH.fullmatch(paths[0])
    assert first is not None, "a path in an attempt's directory"
    return f"{PACKS}/{'-'.join(first.groups())}x{len(paths)}.zip"


def in_pack(pack: str, path: str) -> str:
    """Return the address of a checkpoint in a pack."""
    return f"{pack}#{path}"


def pack_of(address: str) -> str | None:
    """Return the path of the pack that an address names, or None if the checkpoint is not packed.

    The path is absolute if the address is absolute.
    """
    match = _parse(address)
    return None if match is None else f"{match[1]}{match[2]}"


def count_in_pack(address: str) -> int:
    """Return the number of checkpoints in the pack that an address names."""
    match = _parse(address)
    assert match is not None, "an address in a pack"
    return int(match[3])


def path_of(address: str) -> str:
    """Return the path of a checkpoint's own directory, even if the checkpoint is in a pack.

    The path is absolute if the address is absolute.
    """
    match = _parse(address)
    return address if match is None else f"{match[1]}{match[4]}"


def study_of(address: str) -> str:
    """Return the study's directory, with a trailing slash, from the address of a packed checkpoint."""
    match = _parse(address)
    assert match is not None, "an address in a pack"
    return match[1]


def is_pack(name: str) -> bool:
    """Return whether a file has the name of a pack, or of an unfinished one."""
    return _PACK.fullmatch(name) is not None


def _parse(address: str) -> re.Match[str] | None:
    return _IN_PACK.fullmatch(address) if "#" in address else None  # fast: large studies have 100,000 addresses
