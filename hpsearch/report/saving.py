"""The best trial as a folder of its own: its params, and its checkpoint as it was written."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path

from hpsearch.errors import HpsearchError
from hpsearch.report.study import BestTrial, Study
from hpsearch.report.tables import strict_json

__all__ = ["save_trial"]

_RECORD = "trial.json"


def save_trial(study: Study, found: BestTrial, folder: Path, force: bool = False) -> list[Path]:
    """Write `trial.json`, and beside it the checkpoint: the file or folder that the trial saved, under its own name.

    `trial.json` names the checkpoint. It comes last, so that what it names is there and whole.

    Args:
        study: Its study.
        found: The trial.
        folder: Is made where it isn't there.
        force: Replace what was saved there before; nothing else of the folder is touched.

    Raises:
        HpsearchError: The trial has no checkpoint; something is there; or the folder can't be written to.
    """
    if found.checkpoint is None:
        raise HpsearchError(
            f"--save: trial {found.number} must have a checkpoint, but none was saved with its value, or it was "
            "deleted: see checkpoints in docs/sweep-file.md"
        )
    name = found.checkpoint.name
    record, copy = folder / _RECORD, folder / (f"checkpoint-{name}" if name == _RECORD else name)
    if not force and (taken := next((path for path in (record, copy) if os.path.lexists(path)), None)) is not None:
        raise HpsearchError(f"--save: {taken} must not be there yet: name another folder, or replace it with --force")
    told = {
        "study": str(study.directory),
        "trial": found.number,
        "values": found.values,
        "params": found.params,
        "checkpoint": copy.name,
    }
    text = json.dumps(strict_json(told), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    partial = folder / f".{secrets.token_hex(4)}.partial"
    try:
        former = _former(record) if force else None
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _copy(found.checkpoint, partial)
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
