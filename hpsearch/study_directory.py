"""A study's directory: how it appears, what lies where, and who may run it.

study.db                  the journal
sweep.yaml                the sweep file as it was given, where there was one
trials/00012/3/           an attempt of trial 12: output.log, hpsearch-checkpoint-9/, and what the trainable writes
tensorboard/              a view of the journal; it can be deleted
run.lock, workers.lock    held by the process that runs the study, and by its workers
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hpsearch.errors import JournalError, StudyInUseError
from hpsearch.journal import Journal, no_study

__all__ = ["OUTPUT_AT_HAND", "StudyDirectory", "hold_as_worker", "next_directory"]

_JOURNAL = "study.db"
_WORKERS_LOCK = "workers.lock"
_RUN_LOCK = "run.lock"

_CHECKPOINT = re.compile(r"hpsearch-checkpoint-\d+|\.hpsearch-checkpoint-\d+\.part")
"""What a trainable writes into an attempt's directory may have a name that is only like these."""

OUTPUT_AT_HAND = ".output-"
"""A worker's output lies in `trials` under this and the worker's mark, until it is filed under an attempt."""

_RUN_LOCK_PATIENCE = 0.5
"""Seconds; `holder` takes the lock for an instant only to look."""


_held: set[IO[str]] = set()
"""Run locks of this process."""


def _close_held() -> None:
    """Close the run locks that a forked child has taken over: a data loader's, say, which outlives us by seconds.

    The lock belongs to the open file, so it would be held until the last of them has closed it.
    """
    for lock in _held:
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_close_held)


class StudyDirectory:
    """The files of one study.

    Raises:
        JournalError: The path isn't UTF-8. torch, SQLite, Ray and JSON need it to be, each in a place of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            os.fsencode(self.path).decode("utf-8")
        except UnicodeDecodeError:
            shown = os.fsencode(self.path).decode("utf-8", "backslashreplace")
            raise JournalError(
                f"{shown}: expected a path that is text in UTF-8, but it holds other bytes. Name another directory "
                "with --dir, or rename the folder that it is to lie in."
            ) from None

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.path / _JOURNAL

    @property
    def trials(self) -> Path:
        """Where attempts write."""
        return self.path / "trials"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's log directory."""
        return self.path / "tensorboard"

    def exists(self) -> bool:
        """Say whether there is a study here."""
        return self.journal.is_file()

    def create(self, study: Mapping[str, Any], sweep_text: str | None) -> None:
        """Make the directory with the journal inside: it appears by one rename, so it is whole or not there.

        Raises:
            JournalError: The path is taken by something else, or can't be written to.
        """
        new = self.path.parent / f".{self.path.name}.{secrets.token_hex(4)}.new"
        try:
            new.mkdir(parents=True)
            Journal.create(new / _JOURNAL, study)
            (new / "trials").mkdir()
            (new / _RUN_LOCK).touch()
            (new / _WORKERS_LOCK).touch()
            if sweep_text is not None:
                (new / "sweep.yaml").write_text(sweep_text, encoding="utf-8")
            new.rename(self.path)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise JournalError(
                    f"{self.path}: expected a study's directory or none, but something else is there. "
                    "Name another directory with --dir, or move this one away."
                ) from None
            raise JournalError(
                f"{self.path}: expected a place where a study's directory can be made, got: {error.strerror}. "
                "Name another directory with --dir."
            ) from error
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    @contextmanager
    def running(self, who: str) -> Iterator[None]:
        """Hold the study for this process; released with the process, however it ends.

        Args:
            who: `user@host:pid`, shown to whoever comes second.

        Raises:
            StudyInUseError: A live process holds it.
            JournalError: There is no study here.
        """
        if not self.exists():
            raise no_study(self.journal)
        # Made anew where it is missing: not everything that copies a directory copies empty files.
        with (self.path / _RUN_LOCK).open("a+", encoding="utf-8") as lock:
            if not _lock_within(lock, _RUN_LOCK_PATIENCE):
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise StudyInUseError(
                    f"{self.path}: {holder} runs this study now. Watch it with `hpsearch status {self.path}`, "
                    f"or end it with `hpsearch stop {self.path}` and resume."
                )
            lock.truncate(0)
            lock.write(who)
            lock.flush()
            _held.add(lock)
            try:
                yield
            finally:
                _held.discard(lock)
                lock.truncate(0)

    def holder(self) -> str | None:
        """Give the process that runs the study now, `user@host:pid`; None when there is none."""
        try:
            with (self.path / _RUN_LOCK).open("r", encoding="utf-8") as lock:
                if _try_lock(lock, fcntl.LOCK_SH):
                    return None
                return lock.read().strip() or "another process"
        except FileNotFoundError:
            return None

    def outwait_workers(self, patience: float, say: Callable[[str], None]) -> None:
        """Wait until no worker of a former run is left; they end by themselves some seconds after their driver.

        Raises:
            StudyInUseError: Some are still there after `patience` seconds.
        """
        with (self.path / _WORKERS_LOCK).open("a+", encoding="utf-8") as lock:
            if _try_lock(lock, fcntl.LOCK_EX):
                return
            say("waiting for the workers of the former run to end")
            if not _lock_within(lock, patience):
                raise StudyInUseError(
                    f"{self.path}: workers of a former run are still alive after {patience:.0f} s. "
                    f"`fuser {self.path / _WORKERS_LOCK}` names them; end them, then resume."
                )

    def remove_unnamed(self, kept: set[str]) -> None:
        """Delete what attempts that were cut off left: checkpoints that no event names, and unfiled output."""
        for checkpoint in self.trials.glob("*/*/*hpsearch-checkpoint-*"):
            ours = _CHECKPOINT.fullmatch(checkpoint.name) is not None
            if ours and str(checkpoint.relative_to(self.path)) not in kept:
                shutil.rmtree(checkpoint, ignore_errors=True)
        for log in self.trials.glob(f"{OUTPUT_AT_HAND}*"):
            log.unlink(missing_ok=True)


def hold_as_worker(study: Path) -> IO[str] | None:
    """Mark this process as a worker of the study until the file is closed; None where it doesn't see the study."""
    try:
        lock = (study / _WORKERS_LOCK).open("r", encoding="utf-8")
    except OSError:
        return None
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def next_directory(name: str, parent: Path = Path("runs")) -> Path:
    """Give the first `runs/<name>-<n>` that isn't there yet."""
    number = 1
    while (path := parent / f"{name}-{number}").exists() or path.is_symlink():
        number += 1
    return path


def _try_lock(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _lock_within(lock: IO[str], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
