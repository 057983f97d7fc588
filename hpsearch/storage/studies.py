"""Studies in a bucket: how one is claimed, copied to be read, and downloaded to be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.errors import JournalError, StorageError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.event_codec import decode
from hpsearch.journal.file import Row
from hpsearch.journal.filesystem import put_in_place
from hpsearch.journal.journal import Journal
from hpsearch.storage.batches import FOLDER, ChainEnd, digest_of
from hpsearch.storage.bucket import Bucket, in_parallel

RECORD = "study.json"
"""Name of the object with what is known before a study's first event."""


def claim(bucket: Bucket, record: Mapping[str, Any], sweep_text: str | None) -> bool:
    """Create a study in a bucket; return False if there is one already.

    Args:
        bucket: The study's folder.
        record: The study's record.
        sweep_text: The sweep file, if there is one.

    Raises:
        StorageError: The store can't be written.
    """
    content = json.dumps({"study": record, "sweep_file": sweep_text}).encode()
    # The answer to an own attempt may have been lost: no two records are equal.
    return bucket.create(RECORD, content) or bucket.read(RECORD) == content


class Storage:
    """The folder of a bucket that a sweep names, for new studies.

    Raises:
        HpsearchError: The URL is wrong, or boto3 isn't installed.
        StorageError: The store can't be written or read.
    """

    def __init__(self, url: str) -> None:
        self._folder = Bucket(url)
        self._has_journals = self._folder.check()

    def taken(self) -> list[str]:
        """Return the names of the studies in it."""
        return self._folder.folders()

    def claim(self, name: str, record: Mapping[str, Any], sweep_text: str | None) -> str | None:
        """Create a study, and return its URL; None if there is one of this name.

        A store that ignores conditional writes can't tell. The URL then ends with random digits.
        """
        if not self._has_journals:
            return f"{self._folder.url}/{name}-{secrets.token_hex(4)}"
        url = f"{self._folder.url}/{name}"
        return url if claim(Bucket(url), {**record, "storage": url}, sweep_text) else None

    def release(self, url: str) -> None:
        """Delete a study that was claimed and couldn't be created here."""
        Bucket(url).delete(RECORD)


def studies_in(url: str) -> list[str]:
    """Return the URLs of the studies in a folder of a bucket, or of the study itself.

    Raises:
        StorageError: The store can't be read.
    """
    folder = Bucket(url)
    if folder.read(RECORD) is not None:
        return [folder.url]
    inside = [f"{folder.url}/{name}" for name in folder.folders()]
    return [study for study in inside if Bucket(study).read(RECORD) is not None]


def copy_of(url: str) -> Path:
    """Return a directory with a copy of a study's journal, as of now, in the user's cache.

    Raises:
        JournalError: There is no study.
        StorageError: The store can't be read, or the chain of batches is broken.
    """
    stored = _download(url)
    copies = stored.cache / "copies"
    path = copies / stored.head / stored.name
    study_dir = StudyDirectory(path)
    if not study_dir.exists():
        shutil.rmtree(copies, ignore_errors=True)
        try:
            study_dir.create(stored.record, stored.sweep_text, stored.rows())
        except JournalError:
            if not study_dir.exists():  # else another process has created it
                raise
    if study_dir.copied_from() is None:
        study_dir.mark_copy(stored.url, stored.process())
    return path


def directory_to_resume(url: str, directory: Path | None, say: Callable[[str], object]) -> Path:
    """Return the directory in which a study from a bucket is resumed; create it if it is missing.

    Args:
        url: The study in the bucket.
        directory: The directory; None: `runs/<name in the bucket>`.
        say: Shows a line to the user.

    Raises:
        JournalError: There is no study in the bucket, or another one in the directory.
        StorageError: The store can't be read, or the chain of batches is broken.
    """
    stored = _download(url)
    path = directory or Path("runs", stored.name)
    study_dir = StudyDirectory(path)
    if not study_dir.exists():
        study_dir.create(stored.record, stored.sweep_text, stored.rows())
        if (process := stored.process()) is not None:
            say(f"{stored.url} was run by {process}: if that runs on, it ends once this run has begun")
        return path
    with Journal.read(study_dir.journal) as journal:
        if journal.study().get("storage") != stored.url:
            raise JournalError(
                f"{path}: expected no study, or one whose storage is {stored.url}, but another one is here. Name "
                "another directory with --dir."
            )
    return path


@dataclass(frozen=True)
class _StoredStudy:
    """A study whose objects were downloaded."""

    url: str
    record: Mapping[str, Any]
    """The study's record, with this URL."""
    sweep_text: str | None
    digest: str
    """SHA-256 of the object with the record, with which the chain begins."""
    batches: Mapping[str, Path]
    """Names of all batches, in order, and their files in the cache."""
    cache: Path
    """The folder of the cache."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def head(self) -> str:
        """Identifies all events."""
        *_, last = (None, *self.batches.values())
        return self.digest if last is None else digest_of(last.read_bytes())

    def rows(self) -> Iterator[Row]:
        """Yield all events, after checking the chain."""
        link = ChainEnd(self.digest)
        for name, file in self.batches.items():
            try:
                batch, link = link.after(name, file.read_bytes())
            except StorageError as error:
                raise StorageError(f"{self.url}/{error}") from error
            yield from batch.rows

    def process(self) -> str | None:
        """Return the process that hasn't closed the study, with the time of its last event; None if it is closed."""
        process, last = None, 0.0
        for _, when, kind, trial, body, *_ in self.rows():
            last = when
            if kind == "opened":
                process = getattr(decode(kind, trial, body), "process", None)
            elif kind == "ended":
                process = None
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last))
        return None if process is None else f"{process}, unless it died after {clock}, the last event in the bucket"


def _download(url: str) -> _StoredStudy:
    """Download the batches that aren't in the cache yet."""
    bucket = Bucket(url)
    content = bucket.read(RECORD)
    if content is None:
        parent = bucket.url.rpartition("/")[0]
        raise JournalError(
            f"{bucket.url}: expected a study in this folder of the bucket, which holds {RECORD}; there is none here. "
            f"`hpsearch list {parent if parent.count('/') > 2 else bucket.url}` shows those nearby."
        )
    digest, parent = digest_of(content), bucket.url.rpartition("/")[0]
    stored = json.loads(content)
    record = {**stored["study"], "storage": bucket.url, "sweep": {**stored["study"]["sweep"], "storage": parent}}
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = root / "hpsearch" / hashlib.sha256(bucket.url.encode()).hexdigest()[:16]
    # With the tag: the bucket may have been restored from a copy, or had another study at this URL.
    files = {name: cache / f"{name}-{tag}" for name, tag in bucket.names(FOLDER).items()}

    def fetch(name: str) -> None:
        put_in_place(bucket.read(name) or b"", files[name])

    try:
        (cache / FOLDER).mkdir(parents=True, exist_ok=True)
        in_parallel(fetch, [name for name, file in files.items() if not file.exists()])
    except OSError as error:
        raise StorageError(
            f"{cache}: expected a folder that can be written, for a copy of the study, got: {error.strerror}. Set "
            "XDG_CACHE_HOME to another one."
        ) from error
    return _StoredStudy(bucket.url, record, stored["sweep_file"], digest, files, cache)
