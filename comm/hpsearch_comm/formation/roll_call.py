"""Rank 0 waits until every rank has come to it, then tells all of them the outcome at once.

    rank r                                                     rank 0
      | <-- admission, which proves who calls: the user of a ---> |
      |     Unix socket, or the handshake of a TCP connection     |
      | --- entry: rank, size, seconds left, and its text ------> |   holds the connection; end of file: has gone again
      |                          ...                              |
      | <-- outcome: every rank is here, and texts; or who isn't  |
      | --- end of file ----------------------------------------> |

Ranks start at different times and have deadlines of their own. The first of these deadlines counts for all, since no
group can form without that rank: so all ranks fail together, and all can name those that never came.

Rank 0 talks to any number of callers at once and waits for none. A caller that is slow, or that isn't a rank, is
dropped without hindering the others.

Numbers are little endian. An entry is its magic, rank, size, milliseconds left and the text's length, 4 bytes each. An
outcome is its magic, its word, and the number of texts, 4 bytes each, then each text's length and bytes.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import IntEnum
from typing import NoReturn

from hpsearch_comm.errors import RefusedError, RendezvousError
from hpsearch_comm.formation.conversation import Conversation, Talk
from hpsearch_comm.formation.inheritance import close_in_children
from hpsearch_comm.formation.refusals import Refusals

__all__ = ["TEXT_BYTES", "Admission", "RollCall", "answer_roll_call", "name_ranks"]

TEXT_BYTES = 8192
"""Longest text of an entry or an outcome."""

Admission = Generator[bytes | int, bytes, int | None]
"""Rank 0's part of an admission, a talk. It returns the rank that the caller has proved to be, None where the entry's
word is enough; RefusedError sends the caller away."""

_ENTRY = struct.Struct("<4sIIII")
_OUTCOME = struct.Struct("<4sII")
_LENGTH = struct.Struct("<I")
_ENTRY_MAGIC, _OUTCOME_MAGIC = b"HPSe", b"HPSo"
_ADMISSION_SECONDS = 5.0
_FAREWELL_SECONDS = 2.0
_LONGEST_SECONDS = 2e6  # what the kernel takes as a time to wait, and an entry's milliseconds can hold
_MOST_REASONS = 64
_RESET = struct.pack("ii", 1, 0)
_log = logging.getLogger(__name__)


class _Word(IntEnum):
    COMPLETE = 0
    INCOMPLETE = 1
    REFUSED = 2


class _Caller(Conversation):
    """A connection at rank 0: a newcomer until its entry has been read."""

    rank = -1
    text = b""
    refused = False
    deadline = 0.0
    """Of its admission while it is a newcomer, then the rank's own."""


class RollCall:
    """Rank 0's side; used once, by `take`.

    Args:
        listeners: Listening sockets; closed as soon as all ranks are here or the deadline has passed.
        size: Number of ranks.
        deadline: Rank 0's own, in seconds of `time.monotonic()`.
        place: Where it takes place, for errors.
        advice: What the user may do about a rank that doesn't come; ends the error.
        admit: Begins the admission of a new connection.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        size: int,
        deadline: float,
        place: str,
        advice: str,
        admit: Callable[[socket.socket], Admission],
    ) -> None:
        self._listeners = list(listeners)
        self._size = size
        self._began = time.monotonic()
        self._deadline = min(deadline, self._began + _LONGEST_SECONDS)
        self._place = place
        self._advice = advice
        self._admit = admit
        self._selector = selectors.DefaultSelector()
        self._newcomers: dict[_Caller, None] = {}  # in the order of their coming
        self._present: dict[int, _Caller] = {}
        self._refusals: Counter[str] = Counter()

    def take(self, outcome: Callable[[list[bytes]], Sequence[bytes]]) -> list[bytes]:
        """Wait for every other rank, and send all of them what `outcome` makes of their texts.

        Args:
            outcome: Is given the texts of ranks 1, 2, ... and gives the texts for all of them.

        Returns:
            The texts of ranks 1, 2, ...

        Raises:
            RendezvousError: A deadline passed; names the ranks that never came. Those that did come are told.
        """
        try:
            for listener in self._listeners:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ)
            while len(self._present) < self._size - 1:
                end = min([self._deadline, *(caller.deadline for caller in self._present.values())])
                if end <= time.monotonic():
                    self._fail()
                self._turn(end)
            self._close_listeners()
            texts = [self._present[rank].text for rank in range(1, self._size)]
            self._dismiss(_Word.COMPLETE, outcome(texts))
            return texts
        finally:
            self._close_listeners()
            for caller in [*self._newcomers, *self._present.values()]:
                caller.sock.close()
            self._selector.close()

    def _turn(self, end: float) -> None:
        """Wait for something to happen, until `end` at most, and go on with it."""
        end = min([end, *(caller.deadline for caller in self._newcomers)])
        for key, _events in self._selector.select(max(0.0, end - time.monotonic())):
            if isinstance(key.data, _Caller):
                self._serve(key.data)
            elif isinstance(key.fileobj, socket.socket):
                self._welcome(key.fileobj)
        now = time.monotonic()
        for caller in [caller for caller in self._newcomers if caller.deadline <= now]:
            self._refuse(caller, "it was too slow")
            self._drop(caller)

    def _welcome(self, listener: socket.socket) -> None:
        if len(self._newcomers) >= 64 + 2 * self._size:
            # The oldest has had its chance; were newcomers turned away instead, idle connections could keep ranks out.
            self._drop(next(iter(self._newcomers)))
        try:
            sock = listener.accept()[0]
        except OSError:
            if self._newcomers:  # Perhaps there were no descriptors left.
                self._drop(next(iter(self._newcomers)))
            time.sleep(0.01)
            return
        sock.setblocking(False)
        caller = _Caller(close_in_children(sock))
        caller.deadline = time.monotonic() + _ADMISSION_SECONDS
        caller.begin(self._talk(caller))
        self._newcomers[caller] = None
        self._selector.register(sock, selectors.EVENT_READ, caller)
        self._serve(caller)

    def _serve(self, caller: _Caller) -> None:
        if caller.sock.fileno() < 0:  # dropped by an event before this one
            return
        try:
            if not caller.advance():
                self._drop(caller)
                return
        except RefusedError as error:
            self._refuse(caller, str(error), logging.WARNING)
            self._send_away(caller)
        except OSError as error:
            if caller in self._newcomers:
                self._refuse(caller, str(error))
            self._drop(caller)
            return
        self._selector.modify(caller.sock, caller.events, caller)

    def _talk(self, caller: _Caller) -> Talk:
        proved = yield from self._admit(caller.sock)
        magic, rank, size, milliseconds, length = _ENTRY.unpack((yield _ENTRY.size))
        if magic != _ENTRY_MAGIC or length > TEXT_BYTES or proved not in (None, rank):
            raise RefusedError("its entry can't be read: run the same version of hpsearch_comm on every rank")
        reason = self._judge(rank)
        if size != self._size:
            reason = f"it expects {size} ranks where rank 0 expects {self._size}: give every rank the same WORLD_SIZE"
        caller.text = yield length
        reason = reason or self._judge(rank)  # Another may have come while the text was under way.
        if reason is not None:
            yield _pack_outcome(_Word.REFUSED, [f"rank 0 refused rank {rank}: {reason}".encode()])
            raise RefusedError(f"rank {rank}: {reason}")
        caller.rank = rank
        caller.deadline = time.monotonic() + milliseconds / 1000
        del self._newcomers[caller]
        self._present[rank] = caller
        yield 1  # Nothing more is to come: this waits for the end of file.
        raise RefusedError(f"rank {rank} sent more than its entry")

    def _judge(self, rank: int) -> str | None:
        if not 1 <= rank < self._size:
            return f"its rank must be from 1 to {self._size - 1}"
        if rank in self._present:
            return "this rank is here already: two processes may have been started with the same RANK"
        return None

    def _fail(self) -> NoReturn:
        self._close_listeners()
        missing = [rank for rank in range(1, self._size) if rank not in self._present]
        sentence = (
            f"{name_ranks(missing)} of {self._size} did not come to rank 0 ({self._place}), which waited "
            f"{time.monotonic() - self._began:.1f} s, until the start_timeout of a rank was over. {self._advice}"
        )
        if self._refusals:
            counted = "; ".join(f"{count} x {reason}" for reason, count in self._refusals.most_common(3))
            sentence += f". Connections refused meanwhile: {counted}"
        self._dismiss(_Word.INCOMPLETE, [sentence.encode()[:TEXT_BYTES]])
        raise RendezvousError(sentence)

    def _dismiss(self, word: _Word, texts: Iterable[bytes]) -> None:
        """Tell all who are here, and let them hang up first: no remains of their connections then hold the port."""
        message = _pack_outcome(word, texts)
        for caller in [*self._newcomers]:
            self._drop(caller)
        for caller in [*self._present.values()]:
            caller.begin(_farewell(message))
            self._serve(caller)
        end = time.monotonic() + _FAREWELL_SECONDS
        while self._present and time.monotonic() < end:
            self._turn(end)

    def _refuse(self, caller: _Caller, reason: str, level: int = logging.DEBUG) -> None:
        """Count a refusal for the error that may follow: one for each connection, of a bounded number of reasons."""
        new = reason not in self._refusals
        if caller.refused or (new and len(self._refusals) >= _MOST_REASONS):
            return
        caller.refused = True
        self._refusals[reason] += 1
        if new:
            _log.log(level, "rank 0 refused a connection at %s: %s", self._place, reason)

    def _send_away(self, caller: _Caller) -> None:
        """Wait for a refused caller to hang up: what it was told would be lost if this side did so first."""
        if self._present.get(caller.rank) is caller:
            del self._present[caller.rank]
            caller.deadline = time.monotonic() + _FAREWELL_SECONDS
        self._newcomers[caller] = None
        caller.begin(_farewell(b""))

    def _drop(self, caller: _Caller) -> None:
        self._selector.unregister(caller.sock)
        if self._present.get(caller.rank) is caller:
            del self._present[caller.rank]
        else:
            self._newcomers.pop(caller, None)
            with contextlib.suppress(OSError):
                # An orderly end would keep remains of the connection at the port for a minute.
                caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        caller.sock.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()


def answer_roll_call(
    connect: Callable[[float], socket.socket],
    rank: int,
    size: int,
    text: bytes,
    deadline: float,
    place: str,
    advice: str,
) -> list[bytes]:
    """Do another rank's side: come to rank 0, however late it starts, and wait for the outcome.

    Args:
        connect: Makes an admitted connection before the given time. An OSError is tried again until the deadline, and
            so is a Refusal by another start of the group; any other RefusedError for some seconds. All else is final.
        rank: This rank.
        size: Number of ranks.
        text: What this rank has to say; at most TEXT_BYTES.
        deadline: In seconds of `time.monotonic()`.
        place: Where rank 0 is, for errors.
        advice: What the user may do if rank 0 doesn't come; ends the error.

    Returns:
        The texts of the outcome.

    Raises:
        RendezvousError: Rank 0 or others never came, or rank 0 refused this rank.
        RefusedError: What answers at that place doesn't know this group.
    """
    began = time.monotonic()
    deadline = min(deadline, began + _LONGEST_SECONDS)
    pause = 0.005
    refusals = Refusals(f"rank {rank} of {size}", place)
    failure: OSError | RefusedError
    reasons: list[str] = []  # the last two: rank 0 may have told a rank more than the silence since
    while True:
        try:
            with close_in_children(connect(deadline)) as sock:
                left = max(0.001, deadline - time.monotonic())
                sock.settimeout(left)
                sock.sendall(_ENTRY.pack(_ENTRY_MAGIC, rank, size, int(left * 1000), len(text)) + text)
                return _read_outcome(sock, size, deadline + _FAREWELL_SECONDS)
        except OSError as error:
            failure, reason = error, error.strerror or str(error)
            refusals.end()
        except RefusedError as error:
            failure, reason = error, str(error)
            refusals.add(error)
        if reason not in reasons[-1:]:
            reasons = [*reasons[-1:], reason]
        left = deadline - time.monotonic()
        if left <= 0 or refusals.are_final:
            break
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.25)
    sentence = (
        f"rank {rank} of {size} did not find rank 0 ({place}) in {time.monotonic() - began:.1f} s: "
        f"{'; before that, '.join(reversed(reasons))}. {advice}"
    )
    raise RefusedError(sentence) if isinstance(failure, RefusedError) else RendezvousError(sentence)


def name_ranks(ranks: Sequence[int]) -> str:
    """Say `rank 2`, `ranks 2 and 5`, or `ranks 1, 2, 3 and 47 others`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:16]]
    if len(ranks) > len(shown):
        shown.append(f"{len(ranks) - len(shown)} others")
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _farewell(message: bytes) -> Talk:
    """Say a last thing, and wait for the other side to hang up."""
    yield message
    for _ in range(64):
        yield 1


def _pack_outcome(word: _Word, texts: Iterable[bytes]) -> bytes:
    texts = list(texts)
    head = _OUTCOME.pack(_OUTCOME_MAGIC, word, len(texts))
    return head + b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def _read_outcome(sock: socket.socket, size: int, deadline: float) -> list[bytes]:
    magic, word, count = _OUTCOME.unpack(_receive(sock, _OUTCOME.size, deadline))
    if magic != _OUTCOME_MAGIC or count > max(1, size):
        raise RefusedError("rank 0's answer can't be read: run the same version of hpsearch_comm on every rank")
    texts = []
    for _ in range(count):
        (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, deadline))
        if length > TEXT_BYTES:
            raise RefusedError(f"rank 0's answer holds a text of {length} bytes, more than {TEXT_BYTES}")
        texts.append(_receive(sock, length, deadline))
    if word != _Word.COMPLETE:
        raise RendezvousError(b" ".join(texts).decode("utf-8", "replace"))
    return texts


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    arrived = bytearray()
    while len(arrived) < count:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            chunk = sock.recv(count - len(arrived))
        except TimeoutError:
            raise TimeoutError("rank 0 is there, but told no outcome") from None
        if not chunk:
            raise ConnectionResetError("rank 0 ended the connection; it may have died")
        arrived += chunk
    return bytes(arrived)
