"""Manifests of checkpoints, and packs, which contain the checkpoints of several trials.

A manifest lists the files and their sizes. A missing or truncated file is detected before the other files are used.

A pack is an uncompressed zip archive with a checksum of each file. Its paths are relative to the study's directory. Any
zip tool can extract the checkpoints in the study's directory.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hpsearch.errors import UnreadableCheckpointError
from hpsearch.trainable.storage import reading, writing

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


MANIFEST = "manifest.json"


def write_manifest(checkpoint: Path) -> None:
    """Write the manifest of the files in the checkpoint's directory."""
    sizes = {part: (checkpoint / part).stat().st_size for part in _find_parts(checkpoint)}
    (checkpoint / MANIFEST).write_text(manifest_of(sizes), encoding="utf-8")


def manifest_of(sizes: Mapping[str, int]) -> str:
    """Return the manifest of files with these sizes in bytes."""
    return json.dumps({"bytes": dict(sorted(sizes.items()))})


def read_parts(checkpoint: Path) -> dict[str, int | None]:
    """Return the checkpoint's files, relative to its directory, and their sizes in bytes.

    Returns:
        Paths to sizes. Without a manifest, as after extracting a pack with `unzip`: the files in the directory, with
        None as sizes.

    Raises:
        OSError: The manifest cannot be read.
        UnreadableCheckpointError: The manifest is damaged.
    """
    path = checkpoint / MANIFEST
    try:
        path.lstat()
    except FileNotFoundError:
        return dict.fromkeys(_find_parts(checkpoint))
    check_part(path, None)
    try:
        parts: dict[str, int | None] = dict(json.loads(path.read_text(encoding="utf-8"))["bytes"])
        if any("\0" in part for part in parts):
            raise ValueError("no file has such a name")
        return parts
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableCheckpointError(f"the checkpoint is damaged: {path} must be a manifest, but isn't") from error


def check_part(path: Path, size: int | None) -> None:
    """Check that a file exists, has the expected size, and can be opened.

    The file is opened because the user's code may read it later, and would raise its own error.

    Raises:
        OSError: The file cannot be opened.
        UnreadableCheckpointError: The path is not a file, or the file has another size.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
        raise UnreadableCheckpointError(f"the checkpoint is damaged: {path} must be a file, but is something else")
    if size is not None and status.st_size != size:
        raise UnreadableCheckpointError(
            f"the checkpoint is damaged: {path} must have {size} bytes, but has {status.st_size}"
        )
    path.open("rb").close()


def _find_parts(checkpoint: Path) -> list[str]:
    """Return the sorted paths of the files in a checkpoint's directory, relative to it."""
    return sorted(os.path.relpath(path, checkpoint) for path in _files(checkpoint))


def _files(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield entry.path
