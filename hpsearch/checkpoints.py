"""Write a trial's checkpoint so that it can be read again, and read it.

A checkpoint is a directory `hpsearch-checkpoint-<iteration>` in an attempt's directory. It holds what the user saved,
as `state.pt` (tensors and plain containers), `files/` (a directory that the user wrote) or `file/<name>` (a
single file), and beside it `random.pt`, the global random generators at the same report. It is written beside
its place and moved there by one rename: a checkpoint that exists is whole.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from hpsearch.errors import CheckpointError, UnreadableCheckpointError
from hpsearch.random_state import RandomState
from hpsearch.unreadable import refuse_unreadable

__all__ = ["name_of", "pack", "read_random_state", "read_state", "unpack", "user_path", "write"]

_STATE = "state.pt"
_RANDOM = "random.pt"
_DIRECTORY = "files"
_FILE = "file"


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
        CheckpointError: The state can't be read back with `weights_only=True`, or the path isn't there.
    """
    name = name_of(iteration)
    staging = directory / f".{name}.part"
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir()
    try:
        if isinstance(state, (str, os.PathLike)):
            _copy(Path(state), staging, directory)
        else:
            _save(state, staging / _STATE)
        if random_state is not None:
            _dump(random_state, staging / _RANDOM)
        staging.rename(directory / name)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return name


def read_state(checkpoint: Path) -> Any:
    """Read what the user saved: the state with its tensors on the CPU, or the path of what was copied.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
    """
    path = user_path(checkpoint)
    return _load(path) if path.name == _STATE and path.parent == checkpoint else path


def read_random_state(checkpoint: Path) -> RandomState | None:
    """Read the random state that stands beside the user's; None where there was none to write.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
    """
    path = checkpoint / _RANDOM
    if not path.exists() and user_path(checkpoint):
        return None
    state: RandomState = _load(path)
    return state


def user_path(checkpoint: Path) -> Path:
    """Give the path of what the user saved: the file `state.pt`, or the directory or file that was copied.

    Raises:
        UnreadableCheckpointError: There's no checkpoint at this path.
    """
    for path in (checkpoint / _STATE, checkpoint / _DIRECTORY):
        if path.exists():
            return path
    for path in (checkpoint / _FILE).glob("*"):
        return path
    raise UnreadableCheckpointError(f"there must be a checkpoint at {checkpoint}, but there is none: was it deleted?")


def pack(checkpoint: Path) -> bytes:
    """Give a checkpoint as bytes, for a machine that doesn't see its directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(checkpoint.iterdir()):
            archive.add(path, arcname=path.name)
    return buffer.getvalue()


def unpack(packed: bytes, checkpoint: Path) -> None:
    """Write what `pack` gave as the checkpoint at this path, in one rename; one that is there is replaced.

    Raises:
        CheckpointError: The bytes are no checkpoint, or name paths outside of it.
    """
    staging = checkpoint.with_name(f".{checkpoint.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            archive.extractall(staging, filter="data")
    except tarfile.TarError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise CheckpointError(f"the checkpoint sent for {checkpoint} can't be unpacked: {error}") from error
    shutil.rmtree(checkpoint, ignore_errors=True)
    staging.rename(checkpoint)


def _save(state: object, path: Path) -> None:
    """Save a state and read it back at once, or refuse it naming the entry that can't be."""
    import torch

    if callable(getattr(state, "state_dict", None)):
        raise CheckpointError(
            f"a checkpoint must be tensors and plain containers, not a {type(state).__name__}: "
            "pass checkpoint=model.state_dict (no parentheses: it's called only when it is needed)"
        )
    try:
        _dump(state, path)
        # Mapped, so that reading back a large state checks its structure without copying its tensors.
        torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except OSError:
        raise  # the disk's fault, not the state's
    except Exception as error:  # pickle raises whatever an object's reduction raises
        if (disk := _disk_error(error)) is not None:
            raise disk from None
        refuse_unreadable(state, error)


def _disk_error(error: BaseException) -> OSError | None:
    """Find the disk's error behind torch's: closing a file that is full raises another one on top."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _dump(state: object, path: Path) -> None:
    import torch

    with path.open("wb") as file:  # a path of its own costs torch.save five times as long
        torch.save(state, file)


def _load(path: Path) -> Any:
    import torch

    try:
        # On the CPU: the device that saved it may not exist here, and load_state_dict copies to its own.
        return torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise UnreadableCheckpointError(f"the checkpoint must hold {path}, but it doesn't: was it deleted?") from error
    except OSError:
        raise
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
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
        shutil.copytree(source, staging / _DIRECTORY)  # follows links, so that the copy stands by itself
    else:
        (staging / _FILE).mkdir()
        shutil.copy2(source, staging / _FILE / source.name)
