"""Copies a running study to its bucket, from a thread of its own, so that the sweep never waits for the store.

Every few seconds the thread reads the new events from the journal's file, uploads the checkpoints that they name, and
only then creates the batch of events. A checkpoint in the bucket is deleted only after the event that frees it is
there. Whoever reads the bucket therefore finds a prefix of the journal, with the checkpoints that it needs.

If another process has created the next batch, the study continues there, and this process must end.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from hpsearch.errors import StorageError, StudyInUseError, UnreadableCheckpointError, exception_line
from hpsearch.events import Entry, Finished, Opened, Saved
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.event_codec import decode
from hpsearch.journal.file import Row
from hpsearch.journal.journal import BEGINNING, Journal
from hpsearch.storage.batches import FOLDER, Batch, ChainEnd, batch_with, digest_of
from hpsearch.storage.bucket import Bucket, in_parallel
from hpsearch.storage.studies import RECORD, claim
from hpsearch.trainable.addresses import pack_of, path_of
from hpsearch.trainable.checkpoints import pack_into, unpack

_INTERVAL = 5.0
"""Seconds between two looks at the journal. Each look that finds events creates an object."""

_MOST_EVENTS = 20_000
"""Largest number of events of a batch, some ten MB."""

_LONGEST_PAUSE = 60.0
"""Longest pause in seconds before the store is tried again."""

END_SECONDS = 60.0
"""How long the end of a run waits for the store."""

_CHECKPOINTS = "checkpoints/"

_IN_MEMORY = 64 * 1024**2
"""Size in bytes up to which a checkpoint is packed in memory."""


class Mirror:
    """The copy of one study in its bucket. Only `_work` and what it calls run on the thread.

    Args:
        bucket: The study's folder.
        study_dir: The study's directory, locked by this process.
        journal: Its journal, open for writing.
        say: Shows a line to the user.
        wait: Shows what the sweep waits for.

    Raises:
        StorageError: The store can't be written or read.
        StudyInUseError: The bucket has events that this directory lacks.
    """

    def __init__(
        self,
        bucket: Bucket,
        study_dir: StudyDirectory,
        journal: Journal,
        say: Callable[[str], None],
        wait: Callable[[str], None],
    ) -> None:
        self._bucket = bucket
        self._study_dir = study_dir
        self._journal = journal
        self._say = say
        self._wait = wait
        self._driver = secrets.token_hex(8)
        self._link = self._join() if bucket.check() else None  # None: the store holds checkpoints only
        self._mirrored = BEGINNING if self._link is None else self._link.end
        self._lock = threading.Lock()
        self._stored: dict[str, set[str]] = {}
        """Objects of each checkpoint, by the path of its directory, from before they are uploaded."""
        for name in bucket.names(_CHECKPOINTS):
            self._stored.setdefault(_path_in(name), set()).add(name)
        self._uploaded: set[str] = set()  # since the last batch
        self._garbage: set[str] = set()  # objects to delete once the bucket is this process's
        self._is_ours = self._link is None
        self._freed: deque[tuple[int, str]] = deque()
        """Checkpoints in the bucket that aren't needed after an event, by its number."""
        self._pinned: Collection[str] = ()  # paths of checkpoints and packs that are being uploaded
        self._unneeded: list[str] = []  # paths to delete here; those that are pinned, later
        self._fence: str | None = None
        self._wake, self._closing, self._abandoned = threading.Event(), False, False
        self._thread = threading.Thread(target=self._work, name="hpsearch-mirror", daemon=True)
        if self._link is None:
            say(
                f"{bucket.url}: this store ignores conditional writes, so it holds checkpoints only. The journal is in "
                f"{study_dir.path} alone, and the study can be resumed only there"
            )
        self._thread.start()

    # For the thread of the sweep.

    def check(self) -> None:
        """Check that the study still belongs to this process.

        Raises:
            StudyInUseError: Another process continues it.
        """
        if self._fence is not None:
            raise StudyInUseError(self._fence)

    def fetch(self, needed: Collection[str], history: Sequence[Entry]) -> None:
        """Download the checkpoints that are needed and not in the study's directory, as far as the bucket has them.

        Args:
            needed: Addresses.
            history: All events.

        Raises:
            StorageError: The store can't be read, or the disk can't be written.
        """
        missing = {address for address in needed if not self._study_dir.has_checkpoint(address)}
        if not missing:
            return
        named = ((seq, entry.event) for seq, entry in enumerate(history, 1))
        seqs = {event.checkpoint: seq for seq, event in named if isinstance(event, Saved | Finished)}
        batches = [] if self._link is None else list(self._bucket.names(FOLDER))
        drivers: dict[str, str] = {}

        def fetch_one(address: str) -> None:
            names = sorted(self._stored.get(path_of(address), ()))
            if self._link is not None and names:
                # Several processes may have written it. It counts what that one wrote whose event counts.
                batch = batch_with(seqs[address], batches)
                if batch not in drivers:
                    drivers[batch] = Batch.decode(batch, self._bucket.read(batch) or b"").driver
                names = [name for name in names if name == self._object(address, drivers[batch])]
            for name in names[:1]:
                with self._scratch() as file:
                    self._bucket.download(name, file)
                    unpack(file, self._study_dir.path / address)

        self._say(f"fetching checkpoints from {self._bucket.url}: {len(missing)}")
        in_parallel(fetch_one, sorted(missing))

    def begin(self, needed: Collection[str]) -> None:
        """Mirror the run's first event at once, then delete what no event needs: the rest of processes that were lost.

        Args:
            needed: Addresses of checkpoints.
        """
        paths = {path_of(address) for address in needed}
        with self._lock:
            others = [path for path in self._stored if path not in paths]
            self._garbage = {n for path in others for n in self._stored[path] if not n.endswith(self._suffix)}
        self._wake.set()

    def discard(self, addresses: Sequence[str]) -> None:
        """Delete checkpoints that aren't needed after the last event: here, and in the bucket once that is mirrored."""
        assert self._journal.end is not None, "it is open for writing"
        with self._lock:
            paths = [path_of(address) for address in addresses]
            self._freed += [(self._journal.end[0], path) for path in paths]
            self._unneeded += paths
            self._delete_unneeded()

    def _delete_unneeded(self) -> None:
        """Delete checkpoints here that aren't pinned; called with the lock."""
        self._study_dir.discard(path for path in self._unneeded if path not in self._pinned)
        self._unneeded = [path for path in self._unneeded if path in self._pinned]

    def close(self) -> None:
        """Wait until everything is mirrored, but at most a minute; then say what isn't. Later calls do nothing."""
        if self._abandoned:
            return
        self._closing = True
        self._wake.set()
        try:
            self._thread.join(1.0)
            if self._thread.is_alive():
                self._wait(f"copying the last events to {self._bucket.url}, for at most {END_SECONDS:g} s")
                self._thread.join(END_SECONDS)
        finally:
            self._abandoned = True
            self._wake.set()
            end, mirrored = self._journal.end or BEGINNING, self._mirrored[0]
            if self._fence is None and self._link is not None and mirrored < end[0]:
                self._say(
                    f"{self._bucket.url}: events {mirrored + 1} to {end[0]} aren't in the bucket; `hpsearch resume` of "
                    f"{self._study_dir.path} copies them"
                )

    def _join(self) -> ChainEnd:
        """Return the chain's end in the bucket, if it is a prefix of the journal; create the study there if missing."""
        names = list(self._bucket.names(FOLDER))
        if not names:
            sweep_file = self._study_dir.path / "sweep.yaml"
            claim(self._bucket, self._journal.study(), sweep_file.read_text("utf-8") if sweep_file.exists() else None)
            record = self._bucket.read(RECORD)
            assert record is not None, "it exists now"
            return ChainEnd(digest_of(record))
        other = None
        for name in reversed(names):
            content = self._bucket.read(name) or b""
            batch = Batch.decode(name, content)
            if self._journal.rows(batch.end, 0) is not None:
                break
            other = batch
        if other is not None:
            raise StudyInUseError(self._in_use(other.rows))
        return ChainEnd(digest_of(content), batch.end)

    def _in_use(self, rows: Sequence[Row]) -> str:
        events = [decode(kind, trial, body) for _, _, kind, trial, body, *_ in rows]
        process = next((f" ({event.process})" for event in events if isinstance(event, Opened)), "")
        return (
            f"{self._bucket.url}: another process{process} has continued this study in the bucket, so it ends here. "
            f"Events after {rows[0][0] - 1} in {self._study_dir.path} aren't in the bucket. Continue the study in the "
            f"bucket with `hpsearch resume {self._bucket.url} --dir DIR`, in a new directory, when nobody runs it."
        )

    # For the mirror's own thread.

    def _work(self) -> None:
        failures = 0
        while not self._abandoned:
            self._wake.clear()
            is_last, more = self._closing, False
            try:
                with Journal.read(self._study_dir.journal) as reader:
                    more = self._step(reader)
                if failures:
                    self._say(f"{self._bucket.url}: the store answers again")
                failures = 0
            except StudyInUseError as error:
                self._fence = str(error)
                return
            except Exception as error:  # whatever it is, the sweep continues, and the end says what isn't mirrored
                failures += 1
                if failures == 1:
                    self._say(f"not copied now, and tried again: {exception_line(error)}")
            if is_last and not failures and not more:
                return
            if not more:
                longest = _INTERVAL if self._closing else _LONGEST_PAUSE
                self._wake.wait(min(2.0 ** min(failures - 1, 9), longest) if failures else _INTERVAL)

    def _step(self, reader: Journal) -> bool:
        """Mirror the next events, and delete what isn't needed; return whether there may be more events."""
        try:
            with self._lock:  # what is gone by now isn't needed after the newest event, and nothing goes meanwhile
                rows = reader.rows(self._mirrored, _MOST_EVENTS)
                if rows is None:
                    raise StorageError(
                        f"{self._study_dir.journal}: expected the journal that was mirrored, got another one."
                    )
                present = [address for address in _named(rows) if self._study_dir.has_checkpoint(address)]
                self._pinned = {path for address in present for path in (path_of(address), pack_of(address)) if path}
            in_parallel(self._upload, present)
            if rows and self._link is not None:
                self._append(self._link, rows, reader)
            elif rows:
                self._mirrored = rows[-1][0], rows[-1][-1]
            self._uploaded.clear()
        finally:
            with self._lock:
                self._pinned = ()
                self._delete_unneeded()
        self._delete_freed()
        return len(rows) == _MOST_EVENTS

    def _append(self, link: ChainEnd, rows: Sequence[Row], reader: Journal) -> None:
        """Create the next batch; if it exists, check that it is the same."""
        batch = Batch(self._driver, link.digest, rows)
        content = batch.encode()
        if self._bucket.create(batch.name, content):
            self._link, self._is_ours = ChainEnd(digest_of(content), batch.end), True
        else:
            # An answer of the store may have been lost, or that of a process that was killed here.
            other, link_after = link.after(batch.name, self._bucket.read(batch.name) or b"")
            if reader.rows(link.end, len(other.rows)) != other.rows:
                raise StudyInUseError(self._in_use(other.rows))
            self._link = link_after
        self._mirrored = self._link.end

    def _upload(self, address: str) -> None:
        name = self._object(address, self._driver)
        with self._lock:
            objects = self._stored.setdefault(path_of(address), set())
            if name in self._uploaded or (self._link is None and objects - {name}):
                return
            objects.add(name)
        with self._scratch() as file:
            try:
                pack_into(file, self._study_dir.path / address)
            except UnreadableCheckpointError:
                return  # something else deleted or damaged it: a trial that needs it starts again
            self._bucket.upload(name, file)
        self._uploaded.add(name)

    def _delete_freed(self) -> None:
        if not self._is_ours:
            return
        with self._lock:
            freed = [path for seq, path in self._freed if seq <= self._mirrored[0]]
            names = self._garbage.union(*(self._stored.get(path, ()) for path in freed))
        in_parallel(self._delete, sorted(names))
        with self._lock:
            for path in freed:  # in order of their events
                self._freed.popleft()
                self._stored.pop(path, None)

    def _delete(self, name: str) -> None:
        self._bucket.delete(name)
        with self._lock:  # at once: the next deletion may fail
            self._garbage.discard(name)
            self._stored[_path_in(name)].discard(name)

    @property
    def _suffix(self) -> str:
        return f"/{self._driver}.tar"

    def _object(self, address: str, driver: str) -> str:
        return f"{_CHECKPOINTS}{path_of(address)}/{driver}.tar"

    def _scratch(self) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(self._study_dir.trials))


def _path_in(name: str) -> str:
    """Return the path of a checkpoint's directory from the name of its object."""
    return name.removeprefix(_CHECKPOINTS).rpartition("/")[0]


def _named(rows: Sequence[Row]) -> list[str]:
    """Return the checkpoints that events name."""
    events = (decode(kind, trial, body) for _, _, kind, trial, body, *_ in rows if kind in ("saved", "finished"))
    return [e.checkpoint for e in events if isinstance(e, Saved | Finished) and e.checkpoint is not None]


@contextmanager
def mirrored(
    study_dir: StudyDirectory, journal: Journal, say: Callable[[str], None], wait: Callable[[str], None]
) -> Iterator[Mirror | None]:
    """Mirror a study while the block runs it; yield None if its sweep has no storage.

    Args:
        study_dir: Its directory, locked by this process.
        journal: Its journal, open for writing.
        say: Shows a line to the user.
        wait: Shows what the sweep waits for.

    Raises:
        StorageError: The store can't be written or read at the beginning.
        StudyInUseError: Another process continues the study.
    """
    url = journal.study().get("storage")
    if url is None:
        yield None
        return
    mirror = Mirror(Bucket(url), study_dir, journal, say, wait)
    journal.guard = mirror.check
    try:
        yield mirror
    finally:
        mirror.close()
    mirror.check()
