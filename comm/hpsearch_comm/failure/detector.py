"""The failure detector: control connections between all ranks, and the thread that reads them.

The kernel closes a dead process's sockets, so every peer sees an end of file within milliseconds, whatever the cause. A
rank that closes the group normally sends a goodbye first. A rank on which an operation fails sends the error to all
others, so that they raise the same error at once and don't wait for their timeout. If an operation takes long, a rank
announces which operation it is. A peer that has called another operation with the same number ends the group;
otherwise both could wait for each other until the timeout.

A notice is 512 bytes: kind (1), rank concerned (4, little endian, signed), length of the content (2), and the content,
a text in UTF-8 or a packed signature.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import termios
import threading
import time
from collections.abc import Mapping

from hpsearch_comm.errors import CommError, CommTimeoutError, MismatchError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import disagreement
from hpsearch_comm.header import SIGNATURE_BYTES, Signature
from hpsearch_comm.history import History

NOTICE_BYTES = 512

_HEAD = struct.Struct("<BiH")
_GOODBYE = 0
_KINDS: tuple[type[CommError] | None, ...] = (None, CommError, PeerLost, CommTimeoutError, MismatchError)
_WAITING = 255
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_LOOK = 0.1
"""Seconds between two checks of the running operation. An operation that is found twice is slow, and announced."""
_FAREWELL = 10.0
"""Maximum seconds for which a leaving rank waits until all hosts have received its goodbye."""
_REPEAT = 1.0
"""Seconds after which a slow operation is announced again: the peer may have started its own only later."""


def pack_notice(error: CommError | None) -> bytes:
    """Return the notice for an error, or the goodbye for None."""
    if error is None:
        return _HEAD.pack(_GOODBYE, -1, 0).ljust(NOTICE_BYTES, b"\0")
    kind = next((index for index, cls in enumerate(_KINDS) if cls is type(error)), 1)
    text = str(error).encode()[: NOTICE_BYTES - _HEAD.size]
    concerned = error.rank if isinstance(error, PeerLost | CommTimeoutError) else -1
    return (_HEAD.pack(kind, concerned, len(text)) + text).ljust(NOTICE_BYTES, b"\0")


def unpack_notice(notice: bytes, sender: int) -> CommError | None:
    """Return the error of a notice; None for a goodbye. An invalid notice also returns an error, and never raises."""
    kind, concerned, length = _HEAD.unpack_from(notice)
    if kind == _GOODBYE:
        return None
    if kind >= len(_KINDS) or length > NOTICE_BYTES - _HEAD.size:
        return CommError(
            f"rank {sender} sent a notice that this version can't read: run the same version on every rank"
        )
    text = notice[_HEAD.size : _HEAD.size + length].decode(errors="replace")
    text = text if f"rank {sender}" in text else f"rank {sender} says: {text}"
    cls = _KINDS[kind]
    if cls is PeerLost or cls is CommTimeoutError:
        return cls(text, concerned)
    return (cls or CommError)(text)


def peek_notices(notices: bytes, sender: int) -> tuple[bool, CommError | None]:
    """Return whether the unread notices of a connection say that the sender has ended, and its error.

    Args:
        notices: The bytes that have arrived so far; the last notice may be incomplete.
        sender: The rank that has sent them.
    """
    for start in range(0, len(notices) - NOTICE_BYTES + 1, NOTICE_BYTES):
        if notices[start] != _WAITING:
            return True, unpack_notice(notices[start : start + NOTICE_BYTES], sender)
    return False, None


class Detector:
    """This rank's control connections.

    Args:
        rank: This rank.
        controls: A connected socket for each peer; the detector closes them.
        names: The name of each peer for messages, such as `rank 2 (pid 71 on node-b)`.
        abort_state: The group's abort state. Its error is sent to all peers, and errors from peers are stored in it.
        history: The last operations of this rank.
    """

    def __init__(
        self,
        rank: int,
        controls: Mapping[int, socket.socket],
        names: Mapping[int, str],
        abort_state: AbortState,
        history: History,
    ) -> None:
        self._rank = rank
        self._controls = dict(controls)
        self._names = names
        self._abort_state = abort_state
        self._history = history
        self._error_sent = threading.Lock()
        self._last_running: bytes | None = None
        self._announced = b"", 0.0
        self._sending = threading.RLock()  # for signal handlers, as in `AbortState`
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._unsent = dict.fromkeys(self._controls, b"")
        for control in self._controls.values():
            control.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name=f"hpsearch-comm-watch-{rank}", daemon=True)
        abort_state.on_change(self._send_error)
        self._thread.start()

    def announce(self, packed: bytes) -> None:
        """Announce a slow operation to all peers, at most every `_REPEAT` seconds.

        Args:
            packed: The operation's signature.
        """
        (last, when), now = self._announced, time.monotonic()
        if packed != last or now - when >= _REPEAT:
            self._announced = packed, now
            self._send((_HEAD.pack(_WAITING, -1, len(packed)) + packed).ljust(NOTICE_BYTES, b"\0"))

    def close(self) -> None:
        """Send a goodbye, and release the connections and the thread."""
        if self._stop < 0:
            return
        with contextlib.ExitStack() as closing:
            closing.callback(self._release)  # also if Ctrl-C interrupts the goodbye, which may take long
            if self._abort_state.error is None:
                self._send(pack_notice(None))
            self._stop_watching()
            with self._sending:
                if self._abort_state.error is None:
                    _drain(list(self._controls.values()))

    def _stop_watching(self) -> None:
        os.eventfd_write(self._stop, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _release(self) -> None:
        self._stop_watching()
        with self._sending:
            for control in self._controls.values():
                control.close()
        stop, self._stop = self._stop, -1
        os.close(stop)

    def _send_error(self) -> None:
        """Send the group's error to every peer, also if it came from a peer.

        Our connections may end before that peer's notice has reached all others, which would then report our death.
        """
        error = self._abort_state.error
        if error is not None and self._error_sent.acquire(blocking=False):
            self._send(pack_notice(error))

    def _send(self, notice: bytes) -> None:
        with self._sending:
            for peer, control in self._controls.items():
                pending = self._unsent[peer]
                unsent = pending + notice
                # A peer that doesn't accept 512 bytes is gone or stopped. It misses this notice; its end is detected
                # elsewhere. But a notice that was sent in part must be completed, or no later one could be read.
                with contextlib.suppress(OSError):
                    sent = control.send(unsent, socket.MSG_NOSIGNAL)
                    self._unsent[peer] = unsent[sent:] if sent > len(pending) else pending[sent:]

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop, selectors.EVENT_READ)
            for peer, control in self._controls.items():
                selector.register(control, selectors.EVENT_READ, (peer, bytearray()))
            while True:
                for key, _ in selector.select(_LOOK):
                    if key.data is None:
                        return
                    peer, arrived = key.data
                    if not self._receive(peer, arrived):
                        selector.unregister(key.fileobj)
                self._announce_if_slow()

    def _announce_if_slow(self) -> None:
        """Announce the running operation if it was already running at the last check."""
        running, last_running = self._history.running, self._last_running
        self._last_running = running
        if running is not None and running is last_running:
            self.announce(running)

    def _receive(self, peer: int, arrived: bytearray) -> bool:
        """Read notices from a peer; return False if no more will come."""
        how = "its connection ended without a goodbye"
        try:
            chunk = self._controls[peer].recv(NOTICE_BYTES - len(arrived))
        except BlockingIOError:
            return True
        except OSError as cause:
            chunk = b""
            how = f"its host answers no more ({cause.strerror})" if cause.errno in _SILENT else how
        if not chunk:
            if peer not in self._abort_state.departed:
                self._abort_state.fail(
                    PeerLost(
                        f"{self._names[peer]} has died: {how}. Its own output says why; the others of the group can't "
                        "go on without it",
                        peer,
                    )
                )
            return False
        arrived += chunk
        if len(arrived) < NOTICE_BYTES:
            return True
        notice = bytes(arrived)
        arrived.clear()
        if notice[0] == _WAITING:
            self._compare(peer, notice[_HEAD.size : _HEAD.size + SIGNATURE_BYTES])
            return True
        error = unpack_notice(notice, peer)
        if error is None:
            self._abort_state.mark_departed(peer)
        else:
            self._abort_state.fail(error)
        return True

    def _compare(self, peer: int, theirs: bytes) -> None:
        """End the group if this rank's operation with the same number differs from the operation of a peer's notice."""
        try:
            ours = self._history.find(Signature.unpack(theirs).sequence)
            if ours is not None and ours != theirs:
                self._abort_state.fail(disagreement(self._rank, ours, peer, theirs))
        except CommError as error:
            self._abort_state.fail(error)


def _drain(controls: list[socket.socket]) -> None:
    """Wait until the other hosts have received all sent data, and read data that still arrives.

    If a connection is closed with unread data, or data arrives afterwards, the kernel resets it and discards unsent
    data. The peer would miss a delayed goodbye, and report a death.
    """
    until = time.monotonic() + _FAREWELL
    waiting = [control for control in controls if control.family != socket.AF_UNIX]
    while (waiting := [control for control in waiting if _has_unsent(control)]) and time.monotonic() < until:
        time.sleep(0.002)


def _has_unsent(control: socket.socket) -> bool:
    """Return whether the peer is still connected and hasn't received all sent data."""
    try:
        while control.recv(1 << 16):
            pass
    except BlockingIOError:
        return any(fcntl.ioctl(control, termios.TIOCOUTQ, bytes(4)))
    except OSError:
        pass
    return False  # the peer has left or died
