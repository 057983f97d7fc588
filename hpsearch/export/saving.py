"""Saving of the best trial: as a folder with its params and its checkpoint as the user saved it, or as one file."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import delete, writing
from hpsearch.results.study import BestTrial, Study
from hpsearch.tables.formats import indented_json

_RECORD = "trial.json"
_ENDINGS = (".pt", ".pth")


def save_trial(study: Study, best: BestTrial, target: Path, force: bool = False) -> list[Path]:
    """Write a trial's params and its checkpoint; return the paths.

    Args:
        study: The trial's study.
        best: The trial.
        target: Output path. A path with the suffix `.pt` or `.pth` is a file for `torch.load(weights_only=True)`, with
            a dictionary of `study`, `name`, `trial`, `values`, `iteration`, `params` and `state`. Any other path is a
            folder. It gets a file `trial.json` with the same entries, and the checkpoint: the file or folder that the
            trial saved, with its original name. Missing folders are created.
        force: Whether to replace what was saved there before. Other files are never changed.

    Raises:
        HpsearchError: The trial has no checkpoint, or none that can be saved as one file; the target exists; or it
            can't be written.
    """
    if best.checkpoint is None:
        raise HpsearchError(
            f"--save: trial {best.number} must have a checkpoint, but {study.why_no_checkpoint(best.number)}: see "
            "checkpoints in docs/sweep-file.md"
        )
    if not os.path.lexists(best.checkpoint):
        raise HpsearchError(
            f"--save: the checkpoint of trial {best.number} must be written out of the file in which it lies with "
            f"others, {best.checkpoint}, but {study.directory} can't be written. Copy that directory to where it can, "
            "and save it there"
        )
    values = {
        "study": str(study.directory),
        "name": study.sweep.name,
        "trial": best.number,
        "values": best.values,
        "iteration": study.trials[best.number].value_iteration,
        "params": best.params,
    }
    if is_one_file(target):
        save_file(values, best.checkpoint, target, force)
        return [target]
    return _save_folder(values, best.checkpoint, target, force)


def _save_folder(values: Mapping[str, Any], checkpoint: Path, folder: Path, force: bool) -> list[Path]:
    """Write the checkpoint, and then `trial.json`, which names the complete checkpoint."""
    name = checkpoint.name
    record, copy = folder / _RECORD, folder / (f"checkpoint-{name}" if name == _RECORD else name)
    if not force and (there := next((path for path in (record, copy) if os.path.lexists(path)), None)) is not None:
        raise HpsearchError(f"--save: {there} must not be there yet: name another folder, or replace it with --force")
    text = indented_json({**values, "checkpoint": copy.name}, ensure_ascii=False) + "\n"
    partial = folder / f".{secrets.token_hex(4)}.partial"
    with writing(f"--save: {folder} must be a folder that can be written to", "Name another."):
        former = _former(record) if force else None
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _copy(checkpoint, partial)
            record.unlink(missing_ok=True)
            for old in {copy, *([folder / former] if former else [])}:
                delete(old)
            partial.rename(copy)
            partial.write_text(text, encoding="utf-8")
            partial.rename(record)
        finally:
            delete(partial)
    return [record, copy]


def _former(record: Path) -> str | None:
    """Return the name of the checkpoint in an earlier `trial.json`."""
    try:
        name = json.loads(record.read_text(encoding="utf-8"))["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and Path(name).name == name and name not in ("", "..") else None


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def is_one_file(target: Path) -> bool:
    """Return whether a target of `--save` is a file for torch, and not a folder."""
    return target.suffix.lower() in _ENDINGS


def save_file(values: Mapping[str, Any], checkpoint: Path, target: Path, force: bool = False) -> None:
    """Write a trial's values, and its checkpoint's content as `state`, for `torch.load(weights_only=True)`.

    Tensors are on the CPU. The file is written under a temporary name, read back, and renamed.

    Args:
        values: Plain values, by name.
        checkpoint: The checkpoint, as the user saved it.
        target: The output file. Its folder is created if missing.
        force: Whether to replace an existing file.

    Raises:
        HpsearchError: `torch.load` can't read the checkpoint; the file exists; or it can't be written.
    """
    if target.is_dir():
        raise HpsearchError(
            f"--save: {target} must be a file, as it ends in {target.suffix}, but is a folder: name another file"
        )
    if not force and os.path.lexists(target):
        raise HpsearchError(f"--save: {target} must not be there yet: name another file, or replace it with --force")
    state = _state_of(values, checkpoint, target)
    partial = target.with_name(f".{secrets.token_hex(4)}.partial")
    with writing(f"--save: {target} must be a file that can be written", "Name another."):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write({**values, "state": state}, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _state_of(values: Mapping[str, Any], checkpoint: Path, target: Path) -> Any:
    """Return the content of a checkpoint that is one file for `torch.load`."""
    import torch

    kind = "a folder"
    if not checkpoint.is_dir():
        try:
            with checkpoint.open("rb") as file:
                return torch.load(file, weights_only=True, map_location="cpu")
        except (MemoryError, OSError) as error:
            raise HpsearchError(f"--save: the checkpoint {checkpoint} must be read, but: {error}") from error
        except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
            kind = f"a file that it can't read: {str(error).strip().partition(chr(10))[0]}"
    raise HpsearchError(
        f"--save: to be put into one file, the checkpoint of trial {values['trial']} must be what "
        f"torch.load(weights_only=True) reads, but {checkpoint} is {kind}\n  save it as it is, into a folder: "
        f"--save {target.with_suffix('')}"
    )


def _write(record: Mapping[str, Any], path: Path) -> None:
    import torch

    try:
        with path.open("wb") as file:  # torch.save raises RuntimeError for errors of the system
            torch.save(dict(record), file)
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError):
            raise cause from error
        raise
    torch.load(path, weights_only=True, mmap=True, map_location="cpu")  # only a readable file is renamed
