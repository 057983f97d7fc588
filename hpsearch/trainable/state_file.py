"""Write a state so that `torch.load(weights_only=True)` reads it, and read it."""

from __future__ import annotations

import errno
import io
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hpsearch.errors import CheckpointError, UnreadableCheckpointError
from hpsearch.trainable.plain_state import is_plain
from hpsearch.trainable.storage import os_error_behind, reading
from hpsearch.trainable.unreadable import refuse_unreadable

__all__ = ["dump", "load", "load_file", "save_state"]


def save_state(state: object, target: Path | io.BytesIO) -> None:
    """Save a state that can be read back, or refuse it naming the entry that can't be.

    Args:
        state: What the user offers as a state.
        target: A file, or a buffer.

    Raises:
        CheckpointError: It can't be read back with `weights_only=True`.
        OSError: The system refuses it.
    """
    import torch

    if callable(getattr(state, "state_dict", None)):
        raise CheckpointError(
            f"a checkpoint must be tensors and plain containers, not a {type(state).__name__}: "
            "pass checkpoint=model.state_dict (no parentheses: it's called only when it is needed)"
        )
    outer = sys.exception()
    try:
        dump(state, target)
        if not is_plain(state):  # of what is, reading it back would take as long as writing it
            if isinstance(target, Path):
                # Mapped, so that reading back a large state checks its structure without copying its tensors.
                torch.load(target, weights_only=True, mmap=True, map_location="cpu")
            else:
                target.seek(0)
                torch.load(target, weights_only=True, map_location="cpu")
    except Exception as error:  # pickle raises whatever an object's reduction raises
        if (refused := os_error_behind(error, outer)) is not None:
            raise refused from None
        refuse_unreadable(state, error)


def dump(state: object, target: Path | io.BytesIO) -> None:
    """Save what is known to be read back.

    Raises:
        OSError: The system refuses it.
    """
    import torch

    outer = sys.exception()
    try:
        with _checksums():
            if isinstance(target, Path):
                with target.open("wb") as file:  # a path of its own costs torch.save five times as long
                    torch.save(state, file)
            else:
                torch.save(state, target)
    except RuntimeError as error:  # torch's, which may stand on top of the system's
        if (refused := os_error_behind(error, outer)) is not None:
            raise refused from None
        raise


@contextmanager
def _checksums() -> Iterator[None]:
    """Have torch.save write them, by which `load_file` goes, whatever the user's code has set."""
    import torch

    if not hasattr(torch.serialization, "set_crc32_options"):  # before torch 2.6 it always does
        yield
        return
    asked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(asked)


def load_file(path: Path) -> Any:
    """Load what a file holds, with its tensors on the CPU, and see that all of it is what was written.

    torch.save writes a checksum of each tensor, and torch.load doesn't look at them: to do so takes a quarter to a half
    of its time.

    Raises:
        UnreadableCheckpointError: The file is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    with reading(path.parent), path.open("rb") as file:
        state = load(file, path)  # first: zipfile takes what the storage doesn't give for damage
        if (damage := _damage(file)) is not None:
            raise UnreadableCheckpointError(f"the checkpoint {path} is damaged: {damage}; an earlier one may be whole")
        return state


def _damage(file: BinaryIO) -> str | None:
    """Say what in a file of torch.save's isn't what was written, by its checksums; None: nothing."""
    outer = sys.exception()
    try:
        with zipfile.ZipFile(file) as archive:
            other = archive.testzip()
    except MemoryError:
        raise
    except Exception as error:  # zipfile raises BadZipFile, zlib.error, struct.error and others
        refused = os_error_behind(error, outer)
        if refused is not None and refused.errno != errno.EINVAL:  # that is of places before the file's beginning
            raise refused from error
        return str(error)
    return None if other is None else f"{other} in it has another checksum than what was written"


def load(file: BinaryIO, path: Path) -> Any:
    """Load what lies at a path, and is open or was read already, with its tensors on the CPU.

    Raises:
        UnreadableCheckpointError: It is damaged.
        OSError: The system doesn't give it.
    """
    import torch

    outer = sys.exception()
    try:
        # On the CPU: the device that saved it may not exist here, and load_state_dict copies to its own.
        return torch.load(file, weights_only=True, map_location="cpu")
    except MemoryError:
        raise  # it may be whole
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
        if (refused := os_error_behind(error, outer)) is not None:
            raise refused from error
        line = str(error).strip().partition("\n")[0]
        raise UnreadableCheckpointError(f"the checkpoint {path} can't be read: {line}") from error
