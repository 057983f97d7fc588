"""The connections over which ranks tell each other of their end, and the thread that listens to them.

Every pair of ranks has one. The kernel closes a dead process's sockets, so its death is an end of file at every peer
within milliseconds, however it died; a rank that closes the group normally says goodbye before. Whoever sees an
operation fail tells all others, so that they end with the same words in place of a time-out of their own. And of an
operation that lasts long a rank says which it is: a peer that has called another one under the same number ends the
group, since otherwise each could wait for the other until the deadline.

A notice is 512 bytes: kind (1), rank concerned (4, little endian, signed), length of what follows (2), a text in UTF-8
or a packed signature.
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
"""Seconds between two looks at the operation under way. One that is found twice lasts long."""
_FAREWELL = 10.0
"""Seconds for which a rank that leaves waits at most until all hosts have its goodbye."""
_REPEAT = 1.0
"""Seconds after which it is said again which that is: the peer may not have come to its own before."""


def pack_notice(error: CommError | None) -> bytes:
    """Return the notice that tells of this error; of a goodbye for None."""
    if error is None:
        return _HEAD.pack(_GOODBYE, -1, 0).ljust(NOTICE_BYTES, b"\0")
    kind = next((index for index, cls in enumerate(_KINDS) if cls is type(error)), 1)
    text = str(error).encode()[: NOTICE_BYTES - _HEAD.size]
    concerned = error.rank if isinstance(error, PeerLost | CommTimeoutError) else -1
    return (_HEAD.pack(kind, concerned, len(text)) + text).ljust(NOTICE_BYTES, b"\0")


def unpack_notice(notice: bytes, sender: int) -> CommError | None:
    """Read a notice; None is a goodbye. What can't be read is an error of its own, never a crash."""
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
    """Say from the notices that lie unread on a connection whether the sender has ended, and with what error.

    Args:
        notices: What has come so far; the last notice may be cut off.
        sender: The rank that it came from.
    """
    for start in range(0, len(notices) - NOTICE_BYTES + 1, NOTICE_BYTES):
        if notices[start] != _WAITING:
            return True, unpack_notice(notices[start : start + NOTICE_BYTES], sender)
    return False, None


class Detector:
    """This rank's control connections.

    Args:
        rank: This rank.
        controls: A connected socket for each peer; owned from now on.
        names: What to call each peer in messages, such as `rank 2 (pid 71 on node-b)`.
        abort_state: The group's; its failure is told to all peers, and theirs to it.
        history: What this rank has called last.
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
        """Tell all peers that this rank is in an operation that lasts long, now and then.

        Args:
            packed: Its signature.
        """
        (last, when), now = self._announced, time.monotonic()
        if packed != last or now - when >= _REPEAT:
            self._announced = packed, now
            self._send((_HEAD.pack(_WAITING, -1, len(packed)) + packed).ljust(NOTICE_BYTES, b"\0"))

    def close(self) -> None:
        """Say goodbye and release the connections and the thread."""
        if self._stop < 0:
            return
        with contextlib.ExitStack() as closing:
            closing.callback(self._release)  # also where Ctrl-C ends the farewell, which may take long
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
        """Tell every peer how the group has ended, also when a peer has told us.

        Our own connections may end before its notice has come to all others, who then know nothing but that we died.
        """
        error = self._abort_state.error
        if error is not None and self._error_sent.acquire(blocking=False):
            self._send(pack_notice(error))

    def _send(self, notice: bytes) -> None:
        with self._sending:
            for peer, control in self._controls.items():
                pending = self._unsent[peer]
                unsent = pending + notice
                # A peer that doesn't take 512 bytes is gone or has stopped: its own end is seen elsewhere, and it
                # misses this notice. But what it has taken in part it gets to its end, or no later one could be read.
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
        """Announce the operation that this rank is in, if it was in it when last looked."""
        running, last_running = self._history.running, self._last_running
        self._last_running = running
        if running is not None and running is last_running:
            self.announce(running)

    def _receive(self, peer: int, arrived: bytearray) -> bool:
        """Read what has come from a peer; False when nothing more will."""
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
        """End the group if this rank has called another operation than the one in which a peer waits."""
        try:
            ours = self._history.find(Signature.unpack(theirs).sequence)
            if ours is not None and ours != theirs:
                self._abort_state.fail(disagreement(self._rank, ours, peer, theirs))
        except CommError as error:
            self._abort_state.fail(error)


def _drain(controls: list[socket.socket]) -> None:
    """Wait until what was sent has come to the other hosts, and take what still comes.

    A connection that is closed while something lies in it unread, or comes later, is reset, and what it had yet to send
    is thrown away: the peer would take a goodbye that the network has held up for a death.
    """
    until = time.monotonic() + _FAREWELL
    waiting = [control for control in controls if control.family != socket.AF_UNIX]
    while (waiting := [control for control in waiting if _has_unsent(control)]) and time.monotonic() < until:
        time.sleep(0.002)


def _has_unsent(control: socket.socket) -> bool:
    """Return whether the peer, which is still there, lacks something of what was sent to it."""
    try:
        while control.recv(1 << 16):
            pass
    except BlockingIOError:
        return any(fcntl.ioctl(control, termios.TIOCOUTQ, bytes(4)))
    except OSError:
        pass
    return False  # it has left itself, or has died
