"""Packs: files with the checkpoints of several trials.

A pack is an uncompressed zip archive with a checksum of each file. Its paths are relative to the study's directory, so
that any zip tool can extract the checkpoints there.
"""

from __future__ import annotations

import contextlib
import errno
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpsearch.errors import UnreadableCheckpointError
from hpsearch.trainable.manifest import check_part
from hpsearch.trainable.storage import reading, writing

__all__ = ["Parts", "read_pack", "write_pack"]

Parts = Mapping[str, bytes]
"""The files of a checkpoint by their names."""


def write_pack(pack: Path, checkpoints: Mapping[str, Parts]) -> None:
    """Write a pack to a temporary file, then rename it.

    Args:
        pack: Path of the pack.
        checkpoints: Files of each checkpoint, by the path of its directory relative to the study's.

    Raises:
        UnwritableError: The pack cannot be written, for a reason other than the storage.
        StorageError: The storage is full or failing.
    """
    buffer = io.BytesIO()  # faster than many small writes to a file
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, parts in checkpoints.items():
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(f"{path}/{name}"), content)
    staging = pack.with_name(f".{pack.name}.part")
    with writing(f"the checkpoints {pack}"):
        try:
            staging.parent.mkdir(parents=True, exist_ok=True)
            staging.write_bytes(buffer.getbuffer())
            staging.rename(pack)
        finally:
            with contextlib.suppress(OSError):
                staging.unlink(missing_ok=True)


def read_pack(pack: Path, checkpoint: str, names: Iterable[str]) -> Parts:
    """Return the files of a checkpoint in a pack.

    Args:
        pack: Path of the pack.
        checkpoint: Path of the checkpoint's directory, relative to the study's.
        names: Names of the files to read.

    Raises:
        UnreadableCheckpointError: The pack is missing or damaged, or lacks a file.
        StorageError: The storage cannot be read.
    """
    with reading(pack):
        try:
            check_part(pack, None)
            with pack.open("rb") as file, zipfile.ZipFile(file) as archive:
                return {name: archive.read(f"{checkpoint}/{name}") for name in names}
        except FileNotFoundError as error:
            raise UnreadableCheckpointError(
                f"there must be the checkpoint {checkpoint} in {pack}, but there is no such file: was it deleted?"
            ) from error
        except (MemoryError, UnreadableCheckpointError):
            raise  # after a MemoryError, the pack may be intact
        except Exception as error:  # zipfile raises BadZipFile, KeyError, NotImplementedError, struct.error and others
            # EINVAL: a damaged directory of the archive has negative offsets.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise UnreadableCheckpointError(f"the checkpoint {checkpoint} in {pack} is damaged: {error}") from error
