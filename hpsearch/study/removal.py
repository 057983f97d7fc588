"""Deletes a study, or the files in it that nothing needs, by a command or at the end of a run."""

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
"""What was being written when its process was killed."""
_WRITTEN = frozenset({"on_end.log", "report.html", "sight.token", "summary.json"})
"""What the command at the end printed, `hpsearch report` and `list` write, and a killed run on a cluster left."""
_OURS = _OBSERVED | _WRITTEN | {"trials", "sweep.yaml", "run.lock", "workers.lock"}
_EXPORT = frozenset({"trials.csv", "reports.csv", "trials.parquet", "optuna.log"})


@dataclass(frozen=True)
class Parts:
    """What lies in a study's directory."""

    ours: Sequence[Path]
    """The study's, its journal last: while that is there, it can still be removed."""
    others: Sequence[Path]
    """What somebody else put there."""


def parts_of(directory: StudyDirectory) -> Parts:
    """Return what of a study's directory is the study's, and what isn't.

    Raises:
        JournalError: It holds no study.
        HpsearchError: It is a link to a directory that lies elsewhere.
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
    """Return whether a folder holds nothing but what `hpsearch export` writes there."""
    return (
        path.name == "export"
        and path.is_dir()
        and not path.is_symlink()
        and {inside.name for inside in path.iterdir()} <= _EXPORT
    )


def unneeded(directory: StudyDirectory, logs: bool = False) -> list[Path]:
    """Return the files that neither going on with a study needs nor its best trials.

    These are the checkpoints that a sweep with `checkpoints.keep: best` would have deleted by now, and those that
    attempts which were cut off left; the event files of TensorBoard, which can be written again.

    Args:
        directory: The study.
        logs: Also what trials printed that have ended well.

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
    """Write out the checkpoints that stay, and delete those that nothing needs, with the packs that held them.

    Those stay that the best trials show, and those of trials that have ended. A trial that goes on leaves its own soon:
    it is read from its pack. One that can't be written out now may be later, where it is asked for.

    Args:
        directory: The study's directory.
        sweep_state: How its sweep stands.
        durable: Let what was written out survive the loss of power before the packs are deleted.
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
    """Delete files and folders; of a link the link alone.

    Raises:
        HpsearchError: One can't be deleted.
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
