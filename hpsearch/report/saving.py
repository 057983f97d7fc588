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
from hpsearch.report.saving_file import is_one_file, save_file
from hpsearch.report.study import BestTrial, Study
from hpsearch.report.tables import strict_json

__all__ = ["save_trial"]

_RECORD = "trial.json"


def save_trial(study: Study, found: BestTrial, target: Path, force: bool = False) -> list[Path]:
    """Write a trial's params and its checkpoint, and give the paths of what was written.

    Args:
        study: Its study.
        found: The trial.
        target: A file where the name ends in `.pt` or `.pth`, for `torch.load(weights_only=True)`: a dictionary with
            `study`, `name`, `trial`, `values`, `iteration`, `params` and `state`. Else a folder: `trial.json` with the
            same, and beside it the checkpoint, the file or folder that the trial saved, under its own name. Folders
            are made where they aren't there.
        force: Replace what was saved there before; nothing else is touched.

    Raises:
        HpsearchError: The trial has no checkpoint, or none that can be put into one file; something is there; or it
            can't be written.
    """
    if found.checkpoint is None:
        raise HpsearchError(
            f"--save: trial {found.number} must have a checkpoint, but {study.why_no_checkpoint(found.number)}: see "
            "checkpoints in docs/sweep-file.md"
        )
    if not os.path.lexists(found.checkpoint):
        raise HpsearchError(
            f"--save: the checkpoint of trial {found.number} must be written out of the file in which it lies with "
            f"others, {found.checkpoint}, but {study.directory} can't be written. Copy that directory to where it can, "
            "and save it there"
        )
    told = {
        "study": str(study.directory),
        "name": study.sweep.name,
        "trial": found.number,
        "values": found.values,
        "iteration": study.trials[found.number].value_iteration,
        "params": found.params,
    }
    if is_one_file(target):
        save_file(told, found.checkpoint, target, force)
        return [target]
    return _save_folder(told, found.checkpoint, target, force)


def _save_folder(told: Mapping[str, Any], checkpoint: Path, folder: Path, force: bool) -> list[Path]:
    """Write `trial.json`, which names the checkpoint. It comes last, so that what it names is there and whole."""
    name = checkpoint.name
    record, copy = folder / _RECORD, folder / (f"checkpoint-{name}" if name == _RECORD else name)
    if not force and (taken := next((path for path in (record, copy) if os.path.lexists(path)), None)) is not None:
        raise HpsearchError(f"--save: {taken} must not be there yet: name another folder, or replace it with --force")
    text = (
        json.dumps(strict_json({**told, "checkpoint": copy.name}), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    partial = folder / f".{secrets.token_hex(4)}.partial"
    try:
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
    except OSError as error:
        raise HpsearchError(
            f"--save: {folder} must be a folder that can be written to, got: {error.strerror or error}. Name another."
        ) from error
    return [record, copy]


def _former(record: Path) -> str | None:
    """Give the name of the checkpoint that was saved beside a record before."""
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
