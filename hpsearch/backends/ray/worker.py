"""A worker's actor: segments run in its main thread, and another thread exchanges heartbeats with the mailbox."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from hpsearch.backends.ray.mailbox import Heartbeat, HeartbeatReply, Key
from hpsearch.backends.ray.messages import Hello, Location, RoundsEnd, RunRequest, RunResponse
from hpsearch.errors import HpsearchError
from hpsearch.events import Saved
from hpsearch.journal.directory import OUTPUT_AT_HAND, Lock, hold_as_worker
from hpsearch.task import Result
from hpsearch.trainable.addresses import PACKS, path_of
from hpsearch.trainable.checkpoints import pack, unpack
from hpsearch.trainable.failures import failure_of
from hpsearch.trial import Report, Segment
from hpsearch.worker.attempt import LOG, attempt_directory
from hpsearch.worker.child_process import ignore_preemption
from hpsearch.worker.guardian import start_guardian
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.own_files import LoadedCode
from hpsearch.worker.preflight import placed
from hpsearch.worker.worker import Worker

BEAT_SECONDS = 0.5
"""Time between two heartbeats of a running segment."""

_ROUNDS_SECONDS = 0.02
"""A call trains lanes for another epoch until this time has passed, as each call costs a millisecond."""

_WEIGHING_SECONDS = 0.25
"""Time between two measurements of the worker's memory."""

_LARGEST_LOG = 1 << 20
"""Last bytes of a trial's output that are sent to a driver whose directory the worker doesn't see."""

_LATER_SECONDS = 3.0
"""Extra time before this process ends itself. The driver must be first to kill a worker with one lane, to know why."""


class RayWorker:
    """The actor's class. Its methods are called one at a time, in its main thread."""

    def __init__(self, name: str, mailbox: Any, location: Callable[[], Location], gpus: float = 0) -> None:
        if not gpus:  # Ray hides them only from actors that have some of them
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before the import of the trainable, which may look for GPUs
        ignore_preemption()
        self.name = name
        self._mailbox = mailbox
        self._location = location()
        mark = uuid.uuid4().hex
        self._code = LoadedCode()
        self._stand_in = Path(tempfile.gettempdir(), f"hpsearch-{mark}")
        """Folder in place of a study's directory that this node doesn't see. The guardian deletes it."""
        self._guardian = start_guardian(self._stand_in, mark=mark)
        self._study = ""
        self.root = Path()
        self.sees = True
        self._worker: Worker | None = None
        self._live = False
        self._lock: Lock | None = None
        self._channels: dict[Key, _Channel] = {}
        """Channels of the running segments."""
        self._ends = 0
        """Lanes of this study that have ended."""
        self._memory = 0
        self._next_weighing = 0.0
        self._beginning = threading.Lock()  # held while an attempt begins or is taken back
        self._last_begun: Key = ("", 0, 0)
        self._recalled: set[Key] = set()
        self._exchanging = threading.Lock()
        self._exchanges = 0
        self._unanswered: list[tuple[_Channel, Heartbeat]] = []
        """Heartbeats of the last exchange, until it is answered."""
        self._taken_back: tuple[Key, ...] = ()
        """Attempts that the next heartbeat reports as taken back."""
        threading.Thread(target=self._beat, name="hpsearch-beat", daemon=True).start()

    def node(self) -> str:
        """Return this worker's node, as soon as it has one."""
        return self._location.node

    def open(self, payload: bytes, search_path: tuple[str, ...], token: tuple[str, str]) -> Hello:
        """Prepare for a study.

        Args:
            payload: The pickled `Job`; its functions are found by their modules' names.
            search_path: Folders where those modules may lie.
            token: Path and text of a file in the study's directory, which shows whether this worker sees it.
        """
        self.release()
        host = os.uname().nodename
        log = f"trials/{OUTPUT_AT_HAND}{self._guardian.mark}"
        edited = self._code.edited()
        if self._study and edited is not None:
            return Hello(host, False, log, "", None, edited=edited)
        try:
            self.sees = Path(token[0]).read_text(encoding="utf-8") == token[1]
        except OSError:
            self.sees = False
        sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
        try:
            job: Job = pickle.loads(payload)
        except Exception as error:
            return Hello(host, self.sees, log, "", _unreachable_code(error))
        is_first, self._study, self._live = not self._study, job.study, job.live
        if self.sees:
            self._lock = hold_as_worker(Path(job.study))
            self.root = Path(job.study)
        else:
            self._stand_in.mkdir(mode=0o700, exist_ok=True)
            self.root = self._stand_in
        if isinstance(job.trainable, CommandLine):
            job = replace(job, trainable=placed(job.trainable))
        try:
            (self.root / "trials").mkdir(exist_ok=True)
            location, at_hand = self._location, self.root / log
            self._worker = Worker(job, self.root, at_hand, location.node, location.interface, limited)
            worker = self._worker
            if is_first:  # modules stay alive, and scanning them takes the garbage collector 0.2 s
                gc.freeze()
            return Hello(host, self.sees, log, worker.address, None, worker.closes, worker.lanes, worker.why_whole)
        except HpsearchError as error:
            return Hello(host, self.sees, log, "", str(error))

    def close_object(self, unless: int | None) -> None:
        """Close the object of the last trial, unless it is this trial's."""
        if self._worker is not None:
            self._worker.close_object(unless)

    def run(self, request: bytes) -> bytes:
        """Run a segment: a pickled `RunRequest` comes in, a pickled `RunResponse` goes out, or None: it was taken back.

        As bytes, because Ray's pickling of such objects costs many times the standard library's.
        """
        return pickle.dumps(self.respond(pickle.loads(request)), pickle.HIGHEST_PROTOCOL)

    def respond(self, request: RunRequest) -> RunResponse | None:
        """Run a segment; None: it was taken back."""
        segment = request.segment
        assert self._worker is not None, "open comes before run"
        key = (self._study, segment.trial, segment.attempt)
        with self._beginning:
            if key in self._recalled:
                self._recalled.remove(key)  # it may be sent here again
                return None
            self._last_begun = key
        try:
            channel = self._open_channel(request, waits=self._live)
        except HpsearchError as error:
            return self._undone(segment, segment.start, error)
        try:
            result = self._worker.run(request.trial, segment, channel, request.rank_info)
        finally:
            del self._channels[key]
        return self._answer(result, channel, 0 if request.rank_info is None else request.rank_info.rank)

    def round(self, requests: bytes, ends_heard: int) -> bytes:
        """Add new lanes, and train all for an epoch, or for several short ones, until one ends.

        While the driver hasn't received all ended lanes, new ones may be about to replace them. Nothing is trained
        until then: otherwise the others would be stacked again for an epoch that the new lanes would miss.

        Args:
            requests: Pickled `RunRequest`s of the new lanes.
            ends_heard: Number of ended lanes that the driver has received.

        Returns:
            A pickled `RoundsEnd`.
        """
        assert self._worker is not None, "open comes before round"
        ends = []
        for request in pickle.loads(requests):
            segment: Segment = request.segment
            try:
                channel = self._open_channel(request)
            except HpsearchError as error:
                ends.append(self._undone(segment, segment.start, error))
                continue
            self._worker.enter(request.trial, segment, channel, request.timeout)
        until, trained = time.monotonic() + _ROUNDS_SECONDS, 0
        while self._channels and self._ends + len(ends) == ends_heard:
            trained += 1
            for result in self._worker.round():
                ends.append(self._answer(result, self._channels.pop((self._study, result.trial, result.attempt)), 0))
            if time.monotonic() >= until:
                break
        self._ends += len(ends)
        if not self.sees:
            for written in (self.root / PACKS).glob("*.zip"):  # its content is sent with the answers
                written.unlink(missing_ok=True)
        return pickle.dumps(RoundsEnd(tuple(ends), trained), pickle.HIGHEST_PROTOCOL)

    def _open_channel(self, request: RunRequest, waits: bool = False) -> _Channel:
        """Unpack the checkpoint of a segment, and return its channel.

        Raises:
            HpsearchError: The checkpoint can't be written here.
        """
        segment = request.segment
        if request.packed is not None and segment.checkpoint is not None:
            unpack(request.packed, self.root / segment.checkpoint)
        key = (self._study, segment.trial, segment.attempt)
        channel = self._channels[key] = _Channel(self, key, waits)
        return channel

    def _answer(self, result: Result, channel: _Channel, rank: int) -> RunResponse:
        """Return a segment's result, with the files that the driver can't see."""
        saves = tuple(channel.saves)
        if self.sees:
            return replace(self._response(result), saves=saves)
        newest = result.checkpoint or (saves[-1].checkpoint if saves else None)
        try:
            packed = None if newest is None else pack(self.root / newest)
        except HpsearchError as error:
            return self._undone(result, result.iteration, error)
        if result.checkpoint is not None:
            result = replace(result, checkpoint=path_of(result.checkpoint))  # the driver writes it separately
        log = _end_of_log(self.root / attempt_directory(result, rank))
        shutil.rmtree(self.root / attempt_directory(result), ignore_errors=True)
        log_of_lanes = _end_of_log(self.root / PACKS)
        (self.root / PACKS / LOG).unlink(missing_ok=True)
        return replace(self._response(result), saves=saves, packed=packed, log=log, log_of_lanes=log_of_lanes)

    def _undone(self, attempt: Segment | Result, iteration: int, error: HpsearchError) -> RunResponse:
        """Return a segment whose checkpoint couldn't be written here or read."""
        failure = failure_of(error)
        return self._response(Result(attempt.trial, attempt.attempt, iteration, None, (), False, 0.0, failure))

    def _response(self, result: Result) -> RunResponse:
        assert self._worker is not None
        return RunResponse(result, self._weigh(), self._worker.address)

    def _weigh(self) -> int:
        now = time.monotonic()
        if now >= self._next_weighing:
            self._next_weighing = now + _WEIGHING_SECONDS
            self._memory = psutil.Process().memory_info().rss
        return self._memory

    def release(self) -> None:
        """Close the study."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._recalled.clear()
        self._channels.clear()
        self._ends = 0
        shutil.rmtree(self._stand_in, ignore_errors=True)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_SECONDS):
            with self._exchanging:
                self._exchange()

    def decide(self, channel: _Channel, iteration: int) -> None:
        """Send a segment's reports at once, and wait until the driver has handled them or is late."""
        with self._exchanging:
            self._exchange()
        with contextlib.suppress(Exception):  # an error of the mailbox; the next heartbeat tries again
            answer = self._mailbox.verdict.remote(channel.key, iteration).future()
            channel.cut = answer.result(timeout=30.0) or channel.cut

    def _exchange(self) -> None:
        """Exchange the heartbeats of the running segments for replies; first those that weren't answered, again."""
        if not self._unanswered:
            self._exchanges += 1
            for channel in list(self._channels.values()):
                self._unanswered.append((channel, channel.heartbeat(self._taken_back)))
                self._taken_back = ()
        if not self._unanswered:
            return
        if self._worker is not None:
            self._worker.file_log()
        heartbeats = [heartbeat for _, heartbeat in self._unanswered]
        try:
            # An ObjectRef's own future: the answer without importing Ray here.
            answer = self._mailbox.exchange_all.remote(self._exchanges, heartbeats).future()
            replies: list[HeartbeatReply] = answer.result(timeout=30.0)
        except Exception:  # the mailbox may have stored them: it recognizes them by their number
            return
        for (channel, _), reply in zip(self._unanswered, replies, strict=True):
            channel.cut = channel.cut or reply.cut
        self._unanswered.clear()
        self._taken_back = tuple(key for reply in replies for key in reply.recall if self._take_back(key))

    def _take_back(self, key: Key) -> bool:
        with self._beginning:
            if key == self._last_begun:
                return False
            self._recalled.add(key)
            return True


class _Channel:
    """Collects a segment's messages until the next heartbeat. The worker's thread writes, the other one reads."""

    def __init__(self, worker: RayWorker, key: Key, waits: bool) -> None:
        self._worker = worker
        self.key = key
        self._waits = waits  # for the driver, after each report
        self._undecided: int | None = None  # the last iteration reported, until it is decided
        self._guard = threading.Lock()
        self._reports: list[Report] = []
        self._notes: dict[str, str] = {}
        self._unsent = 0  # saves[_unsent:] have not been sent
        self.saves: list[Saved] = []
        self.cut = False

    def reported(self, report: Report) -> None:
        with self._guard:
            self._reports.append(report)
        self._undecided = report.iteration

    def noted(self, notes: Mapping[str, str]) -> None:
        with self._guard:
            self._notes |= notes

    def saved(self, saved: Saved) -> None:
        with self._guard:
            self.saves.append(saved)

    def cut_requested(self) -> bool:
        if self._waits and self._undecided is not None:
            self._worker.decide(self, self._undecided)
            self._undecided = None
        return self.cut

    def heartbeat(self, recalled: tuple[Key, ...]) -> Heartbeat:
        with self._guard:
            reports, self._reports = tuple(self._reports), []
            notes, self._notes = self._notes, {}
            saves = tuple(self.saves[self._unsent :])
        packed = None
        if saves and not self._worker.sees:
            assert saves[-1].checkpoint is not None, "what is saved has an address"
            try:
                packed = pack(self._worker.root / saves[-1].checkpoint)
            except HpsearchError:
                saves = ()  # the response contains them, and the error if it occurs again
        with self._guard:
            self._unsent += len(saves)
        return Heartbeat(self._worker.name, self.key, reports, saves, packed, recalled, notes)


def _end_of_log(directory: Path) -> bytes | None:
    try:
        return (directory / LOG).read_bytes()[-_LARGEST_LOG:]
    except OSError:
        return None


def _unreachable_code(error: Exception) -> str:
    return (
        f"a worker can't load the trainable: {type(error).__name__}: {error}. The code must be importable on every "
        "node: run from the folder that holds it, or install it there."
    )


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """End this process if the block takes longer than `seconds`, and print where it was; None: no limit."""
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds + _LATER_SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
