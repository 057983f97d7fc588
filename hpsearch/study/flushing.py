"""Bring checkpoints onto the disk, so that they survive the loss of power."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpsearch.trainable.addresses import pack_of, place_of

__all__ = ["flush"]


def flush(study: Path, addresses: Iterable[str | None]) -> None:
    """Return when checkpoints, and the directories that lead to them, are on the disk.

    Whatever process wrote them on this machine; over a network it has sent them to the server when it closed them. One
    that isn't there is passed over: who reads it finds that out.

    Args:
        study: The study's directory.
        addresses: Relative to it; None: there is nothing to do.

    Raises:
        OSError: The disk doesn't take them.
    """
    named = [address for address in addresses if address is not None]
    places = {study / place for address in named for place in (pack_of(address), place_of(address)) if place}
    folders: set[Path] = set()
    for place in places:
        if place.exists():
            folders.update(_up_to(study.parent, place.parent))
            for path in (place, *place.rglob("*")):
                _flush(path)
    for folder in folders:
        _flush(folder)


def _up_to(top: Path, folder: Path) -> Iterator[Path]:
    yield folder
    if folder != top:
        yield from _up_to(top, folder.parent)


def _flush(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
