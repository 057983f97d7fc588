"""The best trial as a folder of its own, with its params and its checkpoint as it was written; or as one file."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import writing
from hpsearch.results.study import BestTrial, Study
from hpsearch.tables.formats import indented_json

_RECORD = "trial.json"
_ENDINGS = (".pt", ".pth")


def save_trial(study: Study, best: BestTrial, target: Path, force: bool = False) -> list[Path]:
    """Write a trial's params and its checkpoint; return the paths.

    Args:
        study: Its study.
        best: The trial.
        target: A file, with the suffix `.pt` or `.pth`, for `torch.load(weights_only=True)`: a dictionary with `study`,
            `name`, `trial`, `values`, `iteration`, `params` and `state`. Or a folder: `trial.json` with the same
            entries, and the checkpoint, the file or folder that the trial saved, under its own name. Missing folders
            are created.
        force: Replace what was saved there before; nothing else is touched.

    Raises:
        HpsearchError: The trial has no checkpoint, or none that fits in a file; the target exists; or it can't be
            written.
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
    """Write `trial.json`, which names the checkpoint, last, when the checkpoint is complete."""
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
                _delete(old)
            partial.rename(copy)
            partial.write_text(text, encoding="utf-8")
            partial.rename(record)
        finally:
            _delete(partial)
    return [record, copy]


def _former(record: Path) -> str | None:
    """Return the name of the checkpoint that an earlier record names."""
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


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_one_file(target: Path) -> bool:
    """Return whether a target of `--save` is a file for torch, not a folder."""
    return target.suffix.lower() in _ENDINGS


def save_file(values: Mapping[str, Any], checkpoint: Path, target: Path, force: bool = False) -> None:
    """Write values of a trial and, as `state`, its checkpoint's content, for `torch.load(weights_only=True)`.

    Tensors are on the CPU. The file is written under a temporary name, read back, and renamed.

    Args:
        values: Plain values, by name.
        checkpoint: The checkpoint, as the user saved it.
        target: The file; its folder is created if missing.
        force: Replace an existing file.

    Raises:
        HpsearchError: The checkpoint can't be read in this way; the file exists; or it can't be written.
    """
    if target.is_dir():
        raise HpsearchError(
            f"--save: {target} must be a file, as it ends in {target.suffix}, but is a folder: name another file"
        )
    if not force and os.path.lexists(target):
        raise _exists_error(target)
    state = _state_of(values, checkpoint, target)
    partial = target.with_name(f".{secrets.token_hex(4)}.partial")
    with writing(f"--save: {target} must be a file that can be written", "Name another."):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write({**values, "state": state}, partial)
            _move(partial, target, force)
        finally:
            partial.unlink(missing_ok=True)


def _state_of(values: Mapping[str, Any], checkpoint: Path, target: Path) -> Any:
    """Read what the trial saved, where it is one state."""
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
        with path.open("wb") as file:  # torch.save makes a RuntimeError of what the system refuses
            torch.save(dict(record), file)
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError):
            raise cause from error
        raise
    torch.load(path, weights_only=True, mmap=True, map_location="cpu")  # only a file that can be read is renamed


def _move(partial: Path, target: Path, force: bool) -> None:
    """Rename the file to its target; without force, never replace a file that was created since."""
    if force:
        partial.replace(target)
        return
    try:
        os.link(partial, target)
    except OSError as error:  # it exists by now; or the file system has no links
        if os.path.lexists(target):
            raise _exists_error(target) from error
        partial.rename(target)


def _exists_error(target: Path) -> HpsearchError:
    return HpsearchError(f"--save: {target} must not be there yet: name another file, or replace it with --force")
