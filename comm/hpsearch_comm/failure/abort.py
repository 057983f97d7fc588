"""What has become of a group: whoever sees it end first says why, and every wait looks here."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable

from hpsearch_comm.errors import CommError, PeerLost

_VERDICT = 0.25
"""Seconds that the group has to say what became of a peer whose connection has ended, before we say it."""


class AbortState:
    """Whether a group still stands. Shared by its waits, its watcher and its queue; safe between threads.

    The first error ends the group for good: data of a broken operation may lie on every stream, so nothing that
    followed could be trusted. A peer that said goodbye is only marked, since what it sent before still counts.

    Attributes:
        error: Why the group has ended; None while it stands.
        departed: Ranks that have said goodbye.
        event: A descriptor that becomes readable when the group fails or a peer leaves, for `poll`; not to be read. -1
            when it has been given back.
    """

    def __init__(self) -> None:
        # A signal's handler may come here while the thread that it interrupts is here too: it must not wait for itself.
        self._lock = threading.RLock()
        self._errors: list[CommError] = []
        self.error: CommError | None = None
        self.departed: set[int] = set()
        self._listeners: list[Callable[[], None]] = []
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the group fails or a peer leaves, from the thread that saw it."""
        self._listeners.append(listener)

    def fail(self, error: CommError) -> None:
        """End the group with this error, unless it has ended already."""
        if not self._errors:
            self._errors.append(error)
            self.error = self._errors[0]  # another one may have come between: the first one counts
            self._changed()

    def break_off(self, rank: int, error: BaseException, how: str = "has left the group because of its own") -> None:
        """End the group because of an error of this rank's own; the others are told which."""
        if not isinstance(error, CommError):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            error = PeerLost(f"rank {rank} {how} {reason}", rank)
        self.fail(error)

    def mark_departed(self, peer: int) -> None:
        """Record that a peer has left normally."""
        self.departed.add(peer)
        self._changed()

    def check(self, awaited: int | None = None) -> None:
        """Raise what ended the group, or PeerLost when the awaited peer has left. Called by every wait."""
        if self.error is not None:
            # A copy: several threads may raise it, and each gets a traceback of its own.
            raise copy.copy(self.error).with_traceback(None)
        if awaited is not None and awaited in self.departed:
            raise PeerLost(
                f"rank {awaited} has closed the group while this rank still needs it: call the same operations on "
                "every rank before close(), or wrap the loop in join() where ranks have unequal numbers of batches",
                awaited,
            )

    def await_verdict(self, peer: int) -> None:
        """Wait a moment for the group's verdict on a peer whose connection has ended, and raise it.

        A rank that leaves because another one has died ends its connections too: it isn't the one to name.
        """
        deadline = time.monotonic() + _VERDICT
        while self.error is None and peer not in self.departed and time.monotonic() < deadline:
            time.sleep(0.005)
        self.check(peer)

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            event, self.event = self.event, -1
        if event >= 0:
            os.close(event)

    def _changed(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self.event >= 0:
                os.eventfd_write(self.event, 1)
        for listener in self._listeners:
            listener()
