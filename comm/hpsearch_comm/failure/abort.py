"""The abort state of a group: it keeps the first error, and every wait checks it."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType

from hpsearch_comm.errors import CommError, PeerLost

_VERDICT = 0.25
"""Seconds to wait for the group's error about a peer whose connection has ended, before this rank raises its own."""


class AbortState:
    """Whether a group has failed. Shared by its waits, its detector thread and its queue; thread-safe.

    The first error ends the group permanently: every stream may contain data of a broken operation, so later data can't
    be trusted. A peer that leaves normally is only marked, because the data that it sent before is still valid.

    Attributes:
        error: The error that ended the group; None if there is none.
        departed: Ranks that have left normally.
        event: A descriptor for `poll`, which becomes readable when the group fails or a peer leaves. Don't read from
            it. -1 after `close`.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may interrupt a thread that holds the lock, and must not deadlock.
        self._lock = threading.RLock()
        self._errors: list[CommError] = []
        self.error: CommError | None = None
        self.departed: set[int] = set()
        self._listeners: list[Callable[[], Callable[[], None] | None]] = []
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Register a function to call when the group fails or a peer leaves, in the thread that notices it.

        A method doesn't keep its object alive, and isn't called once that is gone.
        """
        is_method = isinstance(listener, MethodType)
        self._listeners.append(weakref.WeakMethod(listener) if is_method else lambda: listener)

    def fail(self, error: CommError) -> None:
        """End the group with this error, unless it has already ended."""
        if not self._errors:
            self._errors.append(error)
            self.error = self._errors[0]  # another thread may have added one at the same time: keep the first
            self._changed()

    def break_off(self, rank: int, error: BaseException, how: str = "has left the group because of its own") -> None:
        """End the group because of an error on this rank. The error is sent to the other ranks."""
        if not isinstance(error, CommError):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            error = PeerLost(f"rank {rank} {how} {reason}", rank)
        self.fail(error)

    def mark_departed(self, peer: int) -> None:
        """Record that a peer has left normally."""
        self.departed.add(peer)
        self._changed()

    def check(self, awaited: int | None = None) -> None:
        """Raise the error that ended the group, or PeerLost if the awaited peer has left. Called by every wait."""
        if self.error is not None:
            # A copy, because several threads may raise it, each with its own traceback.
            raise copy.copy(self.error).with_traceback(None)
        if awaited is not None and awaited in self.departed:
            raise PeerLost(
                f"rank {awaited} has closed the group while this rank still needs it: call the same operations on "
                "every rank before close(), or wrap the loop in join() where ranks have unequal numbers of batches",
                awaited,
            )

    def await_verdict(self, peer: int) -> None:
        """Wait a moment for the group's error about a peer whose connection has ended, and raise it.

        The peer may have closed its connections only because a third rank has died: then the error must name that rank.
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
        for reference in self._listeners:
            listener = reference()
            if listener is not None:
                listener()
