"""One file with the checkpoints of several trials: a zip archive of what lies below a study's directory otherwise.

Nothing in it is compressed, and zip keeps a checksum of each part. To unpack it in the study's directory, by whatever
means, puts each checkpoint at its place.
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
    """Write a pack beside its place, and move it there by one rename.

    Args:
        pack: Its path.
        checkpoints: By their places, relative to the study's directory.

    Raises:
        UnwritableError: The system refuses it, and the storage isn't to blame.
        StorageError: The storage is full, or out of order.
    """
    buffer = io.BytesIO()  # many small writes to a file take longer
    with zipfile.ZipFile(buffer, "w") as archive:
        for place, parts in checkpoints.items():
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(f"{place}/{name}"), content)
    staging = pack.with_name(f".{pack.name}.part")
    with writing(f"the checkpoints {pack}"):
        try:
            staging.parent.mkdir(parents=True, exist_ok=True)
            staging.write_bytes(buffer.getbuffer())
            staging.rename(pack)
        finally:
            with contextlib.suppress(OSError):
                staging.unlink(missing_ok=True)


def read_pack(pack: Path, place: str, names: Iterable[str]) -> Parts:
    """Read a checkpoint.

    Args:
        pack: The pack.
        place: Of the checkpoint, relative to the study's directory.
        names: Of all its parts.

    Raises:
        UnreadableCheckpointError: The pack is missing or damaged, or doesn't hold them.
        StorageError: The storage doesn't give it.
    """
    with reading(pack):
        try:
            check_part(pack, None)
            with pack.open("rb") as file, zipfile.ZipFile(file) as archive:
                return {name: archive.read(f"{place}/{name}") for name in names}
        except FileNotFoundError as error:
            raise UnreadableCheckpointError(
                f"there must be the checkpoint {place} in {pack}, but there is no such file: was it deleted?"
            ) from error
        except (MemoryError, UnreadableCheckpointError):
            raise  # of the former it may be whole
        except Exception as error:  # zipfile raises BadZipFile, KeyError, NotImplementedError, struct.error and others
            # A damaged directory of the archive leads to places before the file's beginning.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise UnreadableCheckpointError(f"the checkpoint {place} in {pack} is damaged: {error}") from error
