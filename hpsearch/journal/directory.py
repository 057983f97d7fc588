"""A study's directory: its creation, its files, and its locks, which the kernel releases with the process.

study.db                  the journal
sweep.yaml                a copy of the sweep file, if there was one
trials/00012/3/           an attempt of trial 12: output.log, hpsearch-checkpoint-9/, and what the trainable writes
trials/packs/             packs, 00012-3-9x16.zip, each with checkpoints of several trials; output.log
tensorboard/              a view of the journal; it can be deleted
agents/                   messages between a driver and its agents
run.lock, workers.lock    held by the process that runs the study, and by its workers
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hpsearch.errors import JournalError, StorageError, StudyInUseError
from hpsearch.journal.file import Row, is_file, no_study
from hpsearch.journal.filesystem import delete, put_in_place
from hpsearch.journal.journal import Journal
from hpsearch.trainable.addresses import PACKS, is_pack, pack_of, path_of

JOURNAL = "study.db"
_WORKERS_LOCK = "workers.lock"
_RUN_LOCK = "run.lock"

_CHECKPOINT = re.compile(r"hpsearch-checkpoint-\d+|\.hpsearch-checkpoint-\d+(\.[0-9a-f]+)?\.part")
"""A trainable's own files in an attempt's directory may have similar names."""

OUTPUT_AT_HAND = ".output-"
"""Prefix of a worker's output file in `trials`, before the worker's mark. Output is later moved to the attempt."""

_COPY = "copy.json"
"""File of a copy of a study in a bucket."""

_RUN_LOCK_PATIENCE = 0.5
"""Seconds to wait for the lock, since `holder` holds it for a moment when it checks the lock."""


class StudyDirectory:
    """The files of one study.

    Raises:
        JournalError: The path isn't UTF-8, which torch, SQLite, Ray or JSON needs somewhere.
    """

    def __init__(self, path: Path) -> None:
        if str(path).startswith("s3:/"):  # a Path has one slash there
            raise JournalError(
                f"{path}: expected a directory on this machine, got a bucket. Download the study with `hpsearch "
                "resume`, or look at it with list, status, trials, best, trial, history or report."
            )
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
        return self.path / JOURNAL

    @property
    def trials(self) -> Path:
        """Directory of the attempts."""
        return self.path / "trials"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's log directory."""
        return self.path / "tensorboard"

    def exists(self) -> bool:
        """Return whether there is a study here.

        Raises:
            JournalError: The directory can't be read.
        """
        return is_file(self.journal)

    def create(self, study: Mapping[str, Any], sweep_text: str | None, rows: Iterable[Row] = ()) -> None:
        """Create the directory with the journal inside. Creation is atomic, by a rename.

        Args:
            study: The study's record.
            sweep_text: The sweep file, if there is one.
            rows: Events that another journal has.

        Raises:
            JournalError: The path contains something else, or can't be written to.
        """
        try:
            with _new_directory(self.path.parent) as new:
                Journal.create(new / JOURNAL, study, rows)
                (new / "trials").mkdir()
                for lock in (_RUN_LOCK, _WORKERS_LOCK):
                    (new / lock).touch()
                if sweep_text is not None:
                    (new / "sweep.yaml").write_text(sweep_text, encoding="utf-8")
                new.rename(self.path)
        except (OSError, ValueError, sqlite3.Error) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                if error.errno != errno.ENOTDIR and self.exists():
                    raise JournalError(
                        f"{self.path}: expected no study, but another process has made one here meanwhile. To go on "
                        "with that one, once nobody runs it, call this again. Name another directory with --dir for "
                        "one of your own."
                    ) from None
                raise JournalError(
                    f"{self.path}: expected a study's directory or none, but something else is there. "
                    "Name another directory with --dir, or move this one away."
                ) from None
            raise JournalError(
                f"{self.path}: expected a path where a study's directory can be created, got: "
                f"{getattr(error, 'strerror', None) or error}. Name another directory with --dir."
            ) from error

    @contextmanager
    def running(self, owner: str, patience: float = _RUN_LOCK_PATIENCE) -> Iterator[None]:
        """Lock the study for this process, until the process ends in any way.

        If the lock's file is deleted meanwhile, another process may come in; the journal then refuses one of them.

        Args:
            owner: `user@host:pid`, shown to a second process.
            patience: Seconds to wait for another process's lock.

        Raises:
            StudyInUseError: A live process holds the lock.
            JournalError: There is no study here, or it can't be written.
        """
        if not self.exists():
            raise no_study(self.journal)
        if (url := self.copied_from()) is not None:
            raise JournalError(f"{self.path}: this is a copy of {url}, to be read. Resume that one.")
        with ExitStack() as stack:
            with self._writable():
                # Created again if missing: some tools don't copy empty files.
                lock = stack.enter_context(Lock(self.path / _RUN_LOCK, make=True))
                if not lock.acquire(patience):
                    raise StudyInUseError(
                        f"{self.path}: {lock.read() or 'another process'} runs this study now. Watch it with "
                        f"`hpsearch status {shlex.quote(str(self.path))}`, let it rest with "
                        f"`hpsearch pause {shlex.quote(str(self.path))}`, or end it with "
                        f"`hpsearch stop {shlex.quote(str(self.path))}` and resume."
                    )
                lock.write(owner)
            try:
                yield
            finally:
                with suppress(OSError):
                    lock.write("")

    def holder(self) -> str | None:
        """Return the process that runs the study now, as `user@host:pid`; None if there is none.

        Of a copy it is the process that hadn't closed the study, with the time of its last event.

        Raises:
            JournalError: The directory can't be read.
        """
        if (copy := self._copy()) is not None:
            process: str | None = copy["process"]
            return process
        try:
            with Lock(self.path / _RUN_LOCK) as lock:
                return None if lock.acquire_shared() else lock.read() or "another process"
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(
                f"{self.path / _RUN_LOCK}: expected a file that tells whether the study runs now, got: "
                f"{error.strerror}. Mend that, or delete the file if you know that no process runs the study."
            ) from error

    def copied_from(self) -> str | None:
        """Return the URL of the study in a bucket that this is a copy of; None if it isn't one."""
        copy = self._copy()
        return None if copy is None else str(copy["url"])

    def mark_copy(self, url: str, process: str | None) -> None:
        """Mark the study as a copy of one in a bucket, which is only read.

        Args:
            url: The study in the bucket.
            process: The process that hasn't closed it, if there is one.
        """
        put_in_place(json.dumps({"url": url, "process": process}).encode(), self.path / _COPY)

    def _copy(self) -> dict[str, Any] | None:
        try:
            copy: dict[str, Any] = json.loads((self.path / _COPY).read_bytes())
        except OSError:
            return None
        return copy

    def outwait_workers(self, patience: float, say: Callable[[str], None]) -> None:
        """Wait until no worker of an earlier run is left. Workers end automatically some seconds after their driver.

        Raises:
            StudyInUseError: Some workers are still alive after `patience` seconds.
            JournalError: The directory can't be written.
        """
        with self._writable(), Lock(self.path / _WORKERS_LOCK, make=True) as lock:
            if lock.acquire():
                return
            say("waiting for the workers of the former run to end")
            if not lock.acquire(patience):
                raise StudyInUseError(
                    f"{self.path}: workers of a former run are still alive after {patience:.0f} s. "
                    f"`fuser {shlex.quote(str(self.path / _WORKERS_LOCK))}` names them; end them, then resume."
                )

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.path}: expected a study's directory that can be written and locked, got: {error.strerror}. "
                "Mend that (room, permissions), or copy the directory to where it can, and go on there."
            ) from error

    def checkpoints(self) -> list[Path]:
        """Return the directories of all checkpoints, incomplete ones included."""
        candidates = self.trials.glob("*/*/*hpsearch-checkpoint-*")
        return [checkpoint for checkpoint in candidates if _CHECKPOINT.fullmatch(checkpoint.name) is not None]

    def packs(self) -> list[Path]:
        """Return the files with checkpoints of several trials, incomplete ones included."""
        return [pack for pack in (self.path / PACKS).glob("*.zip*") if is_pack(pack.name)]

    def unneeded(self, needed: Collection[str]) -> list[Path]:
        """Return the checkpoints and packs that aren't needed.

        A pack is needed if it contains needed checkpoints that haven't been extracted to their own directories.

        Args:
            needed: Addresses of the needed checkpoints.
        """
        own_paths = {path_of(address) for address in needed}
        in_packs = {address for address in needed if pack_of(address) is not None}
        packs = {pack_of(address) for address in in_packs if not (self.path / path_of(address)).is_dir()}
        checkpoints = [path for path in self.checkpoints() if str(path.relative_to(self.path)) not in own_paths]
        return checkpoints + [path for path in self.packs() if str(path.relative_to(self.path)) not in packs]

    def discard(self, checkpoints: Iterable[str]) -> None:
        """Delete the directories of checkpoints, and packs, if they exist."""
        for checkpoint in checkpoints:
            with suppress(OSError):  # a resumed study tries again
                delete(self.path / path_of(checkpoint))

    def has_checkpoint(self, address: str) -> bool:
        """Return whether a checkpoint still exists, in its own directory or in a pack."""
        pack = pack_of(address)
        return (self.path / path_of(address)).exists() or (pack is not None and (self.path / pack).exists())

    def remove_unnamed(self, named: Collection[str]) -> None:
        """Delete files of interrupted attempts: checkpoints that no event names, and output that wasn't moved."""
        for path in (*self.unneeded(named), *self.trials.glob(f"{OUTPUT_AT_HAND}*")):
            with suppress(OSError):
                delete(path)


def hold_as_worker(study: Path) -> Lock | None:
    """Mark this process as a worker of the study until the lock is closed; None if it can't access the study."""
    try:
        lock = Lock(study / _WORKERS_LOCK)
    except OSError:
        return None
    lock.acquire_shared(math.inf)
    return lock


def next_directory(name: str, parent: Path = Path("runs"), taken: Collection[str] = ()) -> Path:
    """Return the first `runs/<name>-<n>` that doesn't exist yet, and whose name isn't taken elsewhere."""
    number = 1
    while os.path.lexists(path := parent / f"{name}-{number}") or path.name in taken:
        number += 1
    return path


@contextmanager
def _new_directory(parent: Path) -> Iterator[Path]:
    """Create a temporary directory that the caller fills and renames; it is deleted if the caller doesn't rename it."""
    parent.mkdir(parents=True, exist_ok=True)
    new = parent / f".hpsearch-{secrets.token_hex(8)}.new"
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


_held: set[Lock] = set()
"""Exclusive locks of this process."""


def _close_held() -> None:
    """Close locks that a forked child inherited, for example a data loader that outlives its parent by seconds.

    A lock belongs to the open file, so it would be held until the last process closes it.
    """
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_held)


class Lock:
    """An open file that may be locked, by `flock`.

    Args:
        path: A file, or a directory.
        make: Whether to create a missing file. The file is opened for writing, which NFS requires for exclusive locks.

    Raises:
        OSError: The path can't be opened.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        # The holder writes its name into the file. Links aren't followed: a study from elsewhere may link to any file.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if make else os.O_RDONLY, 0o666)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        _held.discard(self)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def acquire_shared(self, patience: float = 0.0) -> bool:
        """Acquire a shared lock; return False if it is still held exclusively elsewhere after `patience` seconds."""
        return self._lock(fcntl.LOCK_SH, patience)

    def acquire(self, patience: float = 0.0) -> bool:
        """Acquire an exclusive lock; return False if other processes still hold it after `patience` seconds."""
        if self._lock(fcntl.LOCK_EX, patience):
            _held.add(self)
            return True
        return False

    def read(self) -> str:
        """Return the file's text."""
        return os.pread(self._file, 4096, 0).decode("utf-8", "replace").strip()

    def write(self, text: str) -> None:
        """Replace the file's text."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode("utf-8", "replace"), 0)

    def _lock(self, kind: int, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
