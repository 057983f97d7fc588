"""The best trial as one file for `torch.load`: its params, and the state that it checkpointed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import HpsearchError

__all__ = ["is_one_file", "save_file"]

_ENDINGS = (".pt", ".pth")


def is_one_file(target: Path) -> bool:
    """Say whether the name given to `--save` is that of a file for torch, and not of a folder."""
    return target.suffix.lower() in _ENDINGS


def save_file(told: Mapping[str, Any], checkpoint: Path, target: Path, force: bool = False) -> None:
    """Write what is told of a trial and, as `state`, what its checkpoint holds, for `torch.load(weights_only=True)`.

    Tensors are on the CPU. The file is written beside its place, read back, and moved there.

    Args:
        told: Plain values by name.
        checkpoint: What the trial saved, as the user reads it.
        target: The file; the folder it lies in is made where it isn't there.
        force: Replace a file that is there.

    Raises:
        HpsearchError: The checkpoint can't be read so; something is there; or the file can't be written.
    """
    if target.is_dir():
        raise HpsearchError(
            f"--save: {target} must be a file, as it ends in {target.suffix}, but is a folder: name another file"
        )
    if not force and os.path.lexists(target):
        raise _taken(target)
    state = _state_of(told, checkpoint, target)
    partial = target.with_name(f".{secrets.token_hex(4)}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write({**told, "state": state}, partial)
            _move(partial, target, force)
        finally:
            partial.unlink(missing_ok=True)
    except FileExistsError as error:
        if error.filename2 is None:  # a folder that was to be made
            raise _unwritable(target, error) from error
        raise _taken(target) from error
    except OSError as error:
        raise _unwritable(target, error) from error


def _state_of(told: Mapping[str, Any], checkpoint: Path, target: Path) -> Any:
    """Read what the trial saved, where it is one state."""
    import torch

    found = "a folder"
    if not checkpoint.is_dir():
        try:
            with checkpoint.open("rb") as file:
                return torch.load(file, weights_only=True, map_location="cpu")
        except (MemoryError, OSError) as error:
            raise HpsearchError(f"--save: the checkpoint {checkpoint} must be read, but: {error}") from error
        except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
            found = f"a file that it can't read: {str(error).strip().partition(chr(10))[0]}"
    raise HpsearchError(
        f"--save: to be put into one file, the checkpoint of trial {told['trial']} must be what "
        f"torch.load(weights_only=True) reads, but {checkpoint} is {found}\n  save it as it is, into a folder: "
        f"--save {target.with_suffix('')}"
    )


def _write(record: Mapping[str, Any], path: Path) -> None:
    import torch

    try:
        with path.open("wb") as file:  # torch.save makes a RuntimeError of what the system refuses
            torch.save(dict(record), file)
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError):
            raise cause from error
        raise
    torch.load(path, weights_only=True, mmap=True, map_location="cpu")  # only what is sure to be read is put in place


def _move(partial: Path, target: Path, force: bool) -> None:
    """Move the whole file to its place; without force never onto another that has come there since."""
    if force:
        partial.replace(target)
        return
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise FileExistsError(0, "", str(partial), None, str(target)) from None
        partial.rename(target)


def _taken(target: Path) -> HpsearchError:
    return HpsearchError(f"--save: {target} must not be there yet: name another file, or replace it with --force")


def _unwritable(target: Path, error: OSError) -> HpsearchError:
    return HpsearchError(
        f"--save: {target} must be a file that can be written, got: {error.strerror or error}. Name another."
    )
