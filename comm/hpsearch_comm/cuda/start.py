"""Start a torch process group on all ranks or on none, and abort one without waiting for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import distributed as dist

from hpsearch_comm.errors import NcclError

Gather = Callable[[Any], list[Any]]
"""Gathers a JSON value from each rank, and returns the values by rank. All ranks must call it."""

LOOK_SECONDS = 0.02
"""Seconds for which a rank waits for its own process group before it checks the other ranks again."""


class GatheredStore(dist.Store):  # type: ignore[name-defined,misc]
    """The store for the start of torch's process groups. `start_together` exchanges its values between the ranks.

    So the values are sent over the group's own connections, whose ranks have proved the secret.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._new: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value for all ranks."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._values[key] = data
            self._new[key] = data.hex()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Wait until a rank has set a value, and return it.

        Raises:
            NcclError: The start was cancelled.
        """
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """Wait until all keys are set. `timeout` is ignored: `start_together` has its own."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(key in self._values for key in keys))
            if self._closed:
                raise NcclError("the start of the process group was given up")

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        with self._changed:
            return all(key in self._values for key in keys)

    def new_values(self) -> dict[str, str]:
        """Return the values that this rank has set since the last call, in hexadecimal."""
        with self._changed:
            new, self._new = self._new, {}
            return new

    def add_values(self, values: Mapping[str, str]) -> None:
        """Add values that another rank has set."""
        with self._changed:
            self._values.update({key: bytes.fromhex(data) for key, data in values.items()})
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits with an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


Start = Callable[[GatheredStore], Any]
"""Creates this rank's process group and connects it with those of all other ranks. It may block until all start."""


def start_together(
    start: Start, gather: Gather, timeout: float, check: Callable[[], object]
) -> tuple[Any, GatheredStore]:
    """Start a process group on all ranks or on none. Return this rank's process group and its store.

    NCCL blocks while it starts, and if it fails on one rank, the others don't notice. So it starts in a thread, while
    the ranks repeatedly exchange their states, until it has started on all ranks or failed on one.

    Args:
        start: Creates the process group.
        gather: Exchanges the states between the ranks.
        timeout: Maximum seconds for the start.
        check: Raises an error if the group has failed.

    Raises:
        NcclError: The start failed on some rank. Every rank raises it, and no rank keeps a process group.
        PeerLost, CommTimeoutError: Not all ranks take part.
    """
    store = GatheredStore()
    made: list[Any] = []
    errors: list[BaseException] = []
    given_up = threading.Event()

    def abort_made() -> None:
        with contextlib.suppress(IndexError):  # taken by the other thread, or not made
            abort(made.pop())

    def begin() -> None:
        try:
            made.append(start(store))
        except BaseException as error:
            errors.append(error)
        if given_up.is_set():
            abort_made()

    starting = threading.Thread(target=begin, name="hpsearch-comm-nccl-start", daemon=True)
    starting.start()
    until = time.monotonic() + timeout
    try:
        while True:
            starting.join(LOOK_SECONDS)
            check()
            running, problem = starting.is_alive(), None
            if not running and errors:
                if not isinstance(errors[0], RuntimeError | ValueError | NcclError):  # torch's errors
                    raise errors[0]
                problem = str(errors[0]).partition("\n")[0] or type(errors[0]).__name__
            elif running and time.monotonic() > until:
                problem = (
                    f"it was still waiting for its peers after {timeout:g} s: can they reach each other by the "
                    "interface that NCCL chooses? See HPSEARCH_COMM_INTERFACE, NCCL_SOCKET_IFNAME, and NCCL_DEBUG=INFO "
                    "for what it does"
                )
            everyone = gather([running, problem, store.new_values()])
            for rank, (_, theirs, values) in enumerate(everyone):
                if theirs is not None:
                    raise NcclError(f"NCCL hasn't started on rank {rank}: {theirs}")
                store.add_values(values)
            if not any(runs for runs, _, _ in everyone):
                return made.pop(), store
    except BaseException:
        store.close()
        given_up.set()
        abort_made()
        raise


def abort(process_group: Any) -> None:
    """Abort and free a process group in a background thread, because both may block as long as NCCL does."""
    if process_group is None:
        return
    references = [process_group]

    def end() -> None:
        references[0].abort()
        references.clear()

    in_background(end)


def in_background(step: Callable[[], object]) -> threading.Thread:
    """Run a step at the end of a process group, which may block, in a daemon thread. Return the thread."""
    thread = threading.Thread(target=step, name="hpsearch-comm-nccl-end", daemon=True)
    thread.start()
    return thread
