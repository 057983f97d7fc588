"""Write a trial's checkpoint so that it can be read again, and read it.

A checkpoint is a directory `hpsearch-checkpoint-<iteration>` in an attempt's directory. It holds what the user saved,
as `state.pt` (tensors and plain containers), `files/` (a directory that the user wrote) or `file/<name>` (a
single file), beside it `random.pt`, the global random generators at the same report, and `manifest.json`, which says
what belongs to it. It is written beside its place and moved there by one rename; what was deleted or cut short since is
missed when it is read.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hpsearch.errors import CheckpointError, UnreadableCheckpointError
from hpsearch.trainable import manifest
from hpsearch.trainable.copying import copy_tree
from hpsearch.trainable.plain_state import is_plain
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.storage import os_error_behind, reading, writing
from hpsearch.trainable.unreadable import refuse_unreadable

__all__ = ["name_of", "pack", "read_random_state", "read_state", "unpack", "user_path", "write"]

_STATE = "state.pt"
_RANDOM = "random.pt"
_DIRECTORY = "files"
_FILE = "file"

_GONE = "there must be a checkpoint at {}, but there is none: was it deleted?"


def name_of(iteration: int) -> str:
    """Give the name of the checkpoint's directory within the attempt's."""
    return f"hpsearch-checkpoint-{iteration}"


def write(directory: Path, iteration: int, state: object, random_state: RandomState | None) -> str:
    """Write the checkpoint of an iteration and give its name.

    Args:
        directory: The attempt's directory.
        iteration: The report that the checkpoint belongs to.
        state: Tensors and plain containers, or the path (`str` or `Path`) of a directory or file to copy.
        random_state: From `random_state.capture` at the same report; None where it isn't known (a script that
            writes its own lines).

    Raises:
        CheckpointError: The state can't be read back with `weights_only=True`, or the path isn't there, or leads to
            something that can't be copied.
        UnwritableError: The system refuses it, and the storage isn't to blame.
        StorageError: The storage is full, or out of order.
    """
    name = name_of(iteration)
    with _staged(directory / name) as staging:
        if isinstance(state, (str, os.PathLike)):
            _copy(Path(state), staging, directory)
        else:
            _save(state, staging / _STATE)
        if random_state is not None:
            _dump(random_state, staging / _RANDOM)
        manifest.write_manifest(staging)
    return name


def read_state(checkpoint: Path) -> Any:
    """Read what the user saved: the state with its tensors on the CPU, or the path of what was copied.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    path = user_path(checkpoint)
    return _load(path) if path == checkpoint / _STATE else path


def read_random_state(checkpoint: Path) -> RandomState | None:
    """Read the random state that stands beside the user's; None where there was none to write.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    if _RANDOM not in _parts(checkpoint):
        return None
    state: RandomState = _load(checkpoint / _RANDOM)
    return state


def user_path(checkpoint: Path) -> Path:
    """Give the path of what the user saved: the file `state.pt`, or the directory or file that was copied.

    All of the checkpoint was found whole, as far as that shows without reading it.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    parts = _parts(checkpoint)
    if _STATE in parts:
        return checkpoint / _STATE
    for part in parts:
        if part.startswith(f"{_FILE}/"):
            return checkpoint / part
    if (checkpoint / _DIRECTORY).is_dir():  # with or without files in it
        return checkpoint / _DIRECTORY
    raise UnreadableCheckpointError(_GONE.format(checkpoint))


def pack(checkpoint: Path) -> bytes:
    """Give a checkpoint as bytes, for a machine that doesn't see its directory.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    _parts(checkpoint)
    buffer = io.BytesIO()
    with reading(checkpoint), tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for path in sorted(checkpoint.iterdir()):
            archive.add(path, arcname=path.name, filter=_plain)
    return buffer.getvalue()


def unpack(packed: bytes, checkpoint: Path) -> None:
    """Write what `pack` gave as the checkpoint at this path, in one rename; one that is there is replaced.

    Raises:
        CheckpointError: The bytes are no checkpoint, or name paths outside of it.
        StorageError: The storage is full, or out of order.
    """
    with _staged(checkpoint) as staging:
        try:
            with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
                archive.extractall(staging, filter="data")
        except tarfile.TarError as error:
            raise CheckpointError(f"the checkpoint sent for {checkpoint} can't be unpacked: {error}") from error


@contextlib.contextmanager
def _staged(checkpoint: Path) -> Iterator[Path]:
    """Give a directory that becomes the checkpoint at the block's end, in place of one that is there."""
    staging = checkpoint.with_name(f".{checkpoint.name}.part")
    with writing(f"the checkpoint {checkpoint}"):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            shutil.rmtree(checkpoint, ignore_errors=True)
            staging.rename(checkpoint)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is no part of a checkpoint, whatever put it there."""
    return member if member.isfile() or member.isdir() else None


def _parts(checkpoint: Path) -> Collection[str]:
    """Give the files of a checkpoint, relative to it, each of which was found whole."""
    with reading(checkpoint):
        if not checkpoint.exists():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        parts = manifest.read_parts(checkpoint)
        if _STATE in parts:
            # Only scripts that write their own lines saved none, and they save no state.
            parts.setdefault(_RANDOM, None)
        elif not parts.keys() - {_RANDOM} and not (checkpoint / _DIRECTORY).is_dir():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        for part, size in parts.items():
            manifest.check_part(checkpoint / part, size)
        return parts.keys()


def _save(state: object, path: Path) -> None:
    """Save a state that can be read back, or refuse it naming the entry that can't be."""
    import torch

    if callable(getattr(state, "state_dict", None)):
        raise CheckpointError(
            f"a checkpoint must be tensors and plain containers, not a {type(state).__name__}: "
            "pass checkpoint=model.state_dict (no parentheses: it's called only when it is needed)"
        )
    outer = sys.exception()
    try:
        _dump(state, path)
        if not is_plain(state):  # of what is, reading it back would take as long as writing it
            # Mapped, so that reading back a large state checks its structure without copying its tensors.
            torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # pickle raises whatever an object's reduction raises
        if (refused := os_error_behind(error, outer)) is not None:
            raise refused from None
        refuse_unreadable(state, error)


def _dump(state: object, path: Path) -> None:
    import torch

    with path.open("wb") as file:  # a path of its own costs torch.save five times as long
        torch.save(state, file)


def _load(path: Path) -> Any:
    import torch

    outer = sys.exception()
    with reading(path.parent):
        try:
            # On the CPU: the device that saved it may not exist here, and load_state_dict copies to its own.
            with path.open("rb") as file:
                return torch.load(file, weights_only=True, map_location="cpu")
        except MemoryError:
            raise  # it may be whole
        except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
            if (refused := os_error_behind(error, outer)) is not None:
                raise refused from error
            line = str(error).strip().partition("\n")[0]
            raise UnreadableCheckpointError(f"the checkpoint {path} can't be read: {line}") from error


def _copy(source: Path, staging: Path, directory: Path) -> None:
    """Copy the user's directory or file, so that they may write to it again."""
    if not source.exists():
        raise CheckpointError(
            "a checkpoint given as text is the path of a directory or file, but there is no "
            f"{str(source)!r}: write it before the report, or put a text that is a state into a dict"
        )
    if directory.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(
            f"a checkpoint can't be the trial's own directory or one above it, but is {source}: "
            "write the checkpoint to a directory of its own, such as trial.directory / 'model'"
        )
    if source.is_dir():
        copy_tree(source, staging / _DIRECTORY)
    else:
        (staging / _FILE).mkdir()
        copy_tree(source, staging / _FILE / source.name)
