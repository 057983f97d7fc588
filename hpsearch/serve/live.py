"""The studies of a folder as they are now. Each journal is read once, however many clients look at it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hpsearch.errors import HpsearchError, JournalError, exception_line
from hpsearch.events import Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import Labels, labels_of
from hpsearch.journal.provenance import process_name
from hpsearch.results.studies import find_studies, fingerprint
from hpsearch.tables.wording import front_line
from hpsearch.task import Workers
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import LOOK_SECONDS, LiveStudy, Tail

_SHARE = 20
"""Pause after something slow, relative to its duration: it uses at most a twentieth of a core."""
_SCAN_SECONDS = 2.0
_WANTED_SECONDS = 60.0
"""Seconds after the last request until the state of a study that no process runs is dropped from memory."""
_MOST_KEPT = 16
"""Largest number of drawings that a study keeps."""
_MOST_ANSWERS = 20


@dataclass(frozen=True, slots=True)
class StudyLine:
    """A study in the list of all studies."""

    name: str = ""
    state: str = "reading"
    """State of the study as in `Standing.ended`, or `unreadable`; `reading` before the first look."""
    message: str = ""
    """Details of the state, or why the study can't be read."""
    best: str = ""
    value: float | None = None
    """Value of the best trial; None without one, and with several goals."""
    trial: int | None = None
    """The best trial, if there is one goal."""
    counts: Mapping[TrialState, int] = field(default_factory=dict)
    total: int | None = None
    """Total number of trials; None if unknown."""
    workers: Workers | None = None
    """None if no process runs the study."""
    remaining: float | None = None
    """Estimated remaining seconds; None if unknown."""
    created: float = 0.0
    labels: Labels = field(default_factory=Labels)


class ServedStudy:
    """A study and its state, which is read when somebody asks for it, and while a process runs the study.

    Args:
        path: The study's directory.

    Raises:
        JournalError: The path isn't UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        """Increases with each change."""
        self.line = StudyLine()
        self._study_dir = StudyDirectory(path)
        self._tail = Tail(self._study_dir)
        self._live: LiveStudy | None = None
        self._lock = threading.RLock()
        self._stamp: object = None
        self._wanted = -_WANTED_SECONDS
        self._labels, self._created = Labels(), 0.0
        self._drawing = threading.Lock()
        self._drawn: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._slow_version, self._rested = 0, 0.0

    def look(self) -> None:
        """Read what is new in the journal."""
        with self._lock:
            try:
                stamp = fingerprint(self._study_dir), self._study_dir.holder()
                is_needed = stamp[1] is not None or time.monotonic() - self._wanted < _WANTED_SECONDS
                if stamp != self._stamp or (self._live is None and is_needed):
                    self._read()
                    self.version += 1
                self._stamp = stamp
                if self._live is not None and not is_needed:
                    self._forget()
                elif self._live is not None and self._live.is_live:
                    self.line = self._summary(self._live)
            except Exception as error:  # whatever damage raises, the other studies are served
                self._forget()
                known = isinstance(error, HpsearchError | OSError)
                if self._stamp != (failed := str(error) if known else exception_line(error)):
                    text = failed.removeprefix(f"{self._study_dir.journal}: ").removeprefix(f"{self.path}: ")
                    self._stamp, self.line = failed, StudyLine(self.path.name, "unreadable", text)
                    self.version += 1

    def _read(self) -> None:
        looked = self._tail.look()
        if looked.record is not None:
            self._created = float(looked.record.get("created", 0.0))
        if self._live is None:
            self._live = LiveStudy(looked)
        else:
            self._live.take(looked)
        self._labels = labels_of(self._study_dir)
        self.line = self._summary(self._live)

    def _forget(self) -> None:
        self._live = None
        self._tail.begin_anew()

    def _summary(self, live: LiveStudy) -> StudyLine:
        objective, leaders, ended = live.sweep.objective, live.journaled.leaders(), live.ended
        single = leaders[0] if leaders and leaders[0].feasible and not objective.several else None
        best = "" if single is None else f"{objective.title} {single.values[0]:.6g}"
        if objective.several and leaders:
            best = front_line(leaders, objective)
        return StudyLine(
            name=live.sweep.name,
            state=ended.state,
            message=ended.message,
            best=best,
            value=None if single is None else single.values[0],
            trial=None if single is None else single.number,
            counts=live.journaled.counts(),
            total=None if live.journaled.total is None else live.journaled.total[0],
            workers=live.workers if live.is_live and not live.is_ask_tell else None,
            remaining=live.remaining(),
            created=self._created,
            labels=self._labels,
        )

    def want(self) -> None:
        """Keep the state up to date for a while, as somebody looks at it."""
        self._wanted = time.monotonic()

    @property
    def is_read(self) -> bool:
        """Whether the state is in memory, so that reading it takes no time."""
        return self._live is not None

    @contextmanager
    def reading(self) -> Iterator[LiveStudy]:
        """Yield the current state, which doesn't change within the block.

        Raises:
            HpsearchError: The study can't be read.
        """
        with self._lock:
            self.want()
            if self._live is None:
                self.look()
            if self._live is None:
                raise JournalError(f"{self.path}: {self.line.message}")
            yield self._live

    @property
    def slow_version(self) -> int:
        """Version of what takes long to draw. It follows `version` after a pause."""
        if self._slow_version != self.version and time.monotonic() >= self._rested:
            self._slow_version = self.version
        return self._slow_version

    def drawn(self, name: str, draw: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """Return what takes long to draw, by part; several clients with the same version share a drawing."""
        self.want()
        with self._drawing:
            version = self.slow_version
            known = self._drawn.pop(name, None)
            if known is None or known[0] != version:
                began = time.monotonic()
                known = version, draw()
                self._rested = time.monotonic() + max(LOOK_SECONDS, _SHARE * (time.monotonic() - began))
            self._drawn[name] = known
            while len(self._drawn) > _MOST_KEPT:
                del self._drawn[next(iter(self._drawn))]
            return known[1]

    def request(self, verb: str, details: Mapping[str, object]) -> int:
        """Write a request for the process that runs the study; return its number.

        Raises:
            HpsearchError: No process runs the study, or the journal can't be written.
        """
        self.want()
        self.look()
        with self.reading() as live:
            if not live.is_live or live.is_ask_tell:
                raise JournalError(f"{self.path}: no process runs this study now; there is nothing to {verb}")
        with Journal.read(self._study_dir.journal) as journal:
            return journal.request(verb, details, process_name())

    def answers(self) -> dict[int, Steered]:
        """Return the newest answers to requests, by the request's number."""
        with self._lock:
            known = {} if self._live is None else self._live.answers
            return {number: known[number] for number in list(known)[-_MOST_ANSWERS:]}


class Studies:
    """The studies of a folder, which a thread looks at again and again.

    Args:
        folder: The folder, or a single study.
        pause: Seconds between two looks.
    """

    def __init__(self, folder: Path, pause: float = LOOK_SECONDS) -> None:
        self.folder = folder
        self.problems: list[str] = []
        """Why studies of the folder can't be found."""
        self.is_over = threading.Event()
        """Set when the server ends."""
        self._pause = pause
        self._served: dict[str, ServedStudy] = {}
        self._scanning = threading.Lock()
        self._scan_due = 0.0
        self._thread = threading.Thread(target=self._work, name="hpsearch-serve", daemon=True)

    def __enter__(self) -> Studies:
        self._scan()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()

    def all(self) -> dict[str, ServedStudy]:
        """Return the studies by key."""
        return dict(self._served)

    def find(self, key: str) -> ServedStudy | None:
        """Return the study with a key, if it is in the folder."""
        if key not in self._served:
            self._scan()
        return self._served.get(key)

    def _scan(self) -> None:
        """Look for new studies and for those that are gone, unless this was done a moment ago."""
        with self._scanning:
            began = time.monotonic()
            if began < self._scan_due:
                return
            served, problems = {}, []
            try:
                for path in find_studies(self.folder):
                    key = key_of(path.relative_to(self.folder), self.folder)
                    try:
                        served[key] = self._served.get(key) or ServedStudy(path)
                    except JournalError as error:
                        problems.append(str(error))
            except HpsearchError as error:
                problems.append(str(error))
            self._served, self.problems = served, problems
            self._scan_due = time.monotonic() + max(_SCAN_SECONDS, _SHARE * (time.monotonic() - began))

    def _work(self) -> None:
        while not self.is_over.is_set():
            self._scan()
            began = time.monotonic()
            for study in self.all().values():
                if self.is_over.is_set():
                    return
                study.look()
            self.is_over.wait(max(self._pause, time.monotonic() - began))


def key_of(relative: Path, folder: Path) -> str:
    """Return a study's key in addresses: its path within the folder, in letters, digits and `._-~`. It is unique."""
    text = str(relative) if relative.parts else folder.absolute().name
    return re.sub(r"[^A-Za-z0-9._-]", lambda sign: "".join(f"~{byte:02X}" for byte in os.fsencode(sign[0])), text)
