"""Delete a study, or its files that are no longer needed, on a command or at the end of a run."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpsearch.errors import CheckpointError, HpsearchError, StorageError, UnwritableError
from hpsearch.journal.directory import JOURNAL, StudyDirectory
from hpsearch.journal.filesystem import flush
from hpsearch.journal.journal import Journal
from hpsearch.study.state import SweepState
from hpsearch.study.trial_records import TERMINAL, owner_of
from hpsearch.study.warm_start import stored_warm_start
from hpsearch.sweep.sweep import Sweep
from hpsearch.trainable.checkpoints import extract
from hpsearch.trial import TrialState

_BESIDE = ("-wal", "-shm", "-journal")
_OBSERVED = frozenset({"tensorboard", "trials.csv", "reports.csv", "mlflow.db", "wandb"})
_PARTIAL = re.compile(r"\.(trials\.csv|reports\.csv|mlflow\.db|report\.html|summary\.json)(\.\d+)?\.partial.*")
"""Matches partial files of a process that was killed while writing them."""
_WRITTEN = frozenset({"copy.json", "on_end.log", "report.html", "sight.token", "summary.json"})
"""Files that copies, the `on_end` command, `hpsearch report`, `hpsearch list` and a killed run on a cluster write."""
_OURS = _OBSERVED | _WRITTEN | {"agents", "trials", "sweep.yaml", "run.lock", "workers.lock"}
_EXPORT = frozenset({"trials.csv", "reports.csv", "trials.parquet", "optuna.log"})


@dataclass(frozen=True)
class Parts:
    """Contents of a study's directory."""

    ours: Sequence[Path]
    """Files of the study. The journal is last: while it exists, the study can still be removed."""
    others: Sequence[Path]
    """Files that hpsearch didn't create."""


def parts_of(directory: StudyDirectory) -> Parts:
    """Return the study's own files in its directory, and the others.

    Raises:
        JournalError: The directory contains no study.
        HpsearchError: The directory is a link to another one.
    """
    Journal.read(directory.journal).close()
    if directory.path.is_symlink():
        raise HpsearchError(
            f"{directory.path}: must be a study's directory itself, but is a link to {directory.path.resolve()}. Name "
            "that directory, and delete the link with rm"
        )
    journal = [directory.path / f"{JOURNAL}{end}" for end in (*_BESIDE, "")]
    ours: list[Path] = []
    others: list[Path] = []
    for path in sorted(directory.path.iterdir()):
        if path in journal:
            continue
        is_ours = path.name in _OURS or _PARTIAL.fullmatch(path.name) or _is_export(path)
        (ours if is_ours else others).append(path)
    return Parts([*ours, *(path for path in journal if path.exists())], others)


def _is_export(path: Path) -> bool:
    """Return whether a folder contains only files that `hpsearch export` writes."""
    return (
        path.name == "export"
        and path.is_dir()
        and not path.is_symlink()
        and {inside.name for inside in path.iterdir()} <= _EXPORT
    )


def unneeded(directory: StudyDirectory, logs: bool = False) -> list[Path]:
    """Return the files that are needed neither to resume a study nor for its best trials.

    These are the checkpoints that a sweep with `checkpoints.keep: best` would have deleted by now, the checkpoints of
    interrupted attempts, and TensorBoard's event files, which can be written again.

    Args:
        directory: The study's directory.
        logs: Whether to include the output of trials that ended without failure.

    Raises:
        JournalError: There is no study here, or it can't be read.
    """
    with Journal.read(directory.journal) as journal:
        record, entries = journal.study(), list(journal.entries())
    sweep = Sweep.from_json(record["sweep"])
    sweep = replace(sweep, checkpoints=replace(sweep.checkpoints, keep="best"))
    sweep_state = SweepState(sweep, past=stored_warm_start(record).past)
    try:
        for _ in sweep_state.resume(entries):
            pass
        needed = sweep_state.checkpoints()
        ended = [row.number for row in sweep_state.rows() if row.state in (TrialState.COMPLETE, TrialState.STOPPED)]
    finally:
        sweep_state.close()
    paths = directory.unneeded(needed)
    if directory.tensorboard.is_dir() and not directory.tensorboard.is_symlink():
        paths.append(directory.tensorboard)
    if logs:
        paths += [log for trial in ended for log in sorted((directory.trials / f"{trial:05d}").glob("*/**/output.log"))]
    return paths


def settle(directory: StudyDirectory, sweep_state: SweepState, *, durable: bool = False) -> None:
    """Extract the checkpoints to keep from their packs, and delete checkpoints and packs that are no longer needed.

    The needed checkpoints of the best trials and of ended trials are extracted. A trial that will resume soon replaces
    its checkpoint, so that one stays in its pack. A checkpoint that can't be extracted now may be extracted later, when
    it is requested.

    Args:
        directory: The study's directory.
        sweep_state: The state of its sweep.
        durable: Whether extracted checkpoints must survive a power loss before their packs are deleted.
    """
    needed = sweep_state.checkpoints()
    staying = {address for address in needed if sweep_state.record(owner_of(address)).state in TERMINAL}
    staying.update(row.address for row in sweep_state.leaders() if row.address is not None)
    for address in staying:
        with contextlib.suppress(CheckpointError, StorageError, UnwritableError):
            extract(directory.path / address)
    if durable:
        flush(directory.path, staying)
    directory.remove_unnamed(needed)


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders. Links are deleted, but not their targets.

    Raises:
        HpsearchError: A file can't be deleted.
    """
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise HpsearchError(
                f"{error.filename or path}: must be a file that can be deleted, got: {error.strerror}. What came "
                "before it is gone; mend that, and give the command again"
            ) from error
