"""Starts a process group of torch's on all ranks or on none, and ends one without waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import distributed as dist

from hpsearch_comm.errors import NcclError

Gather = Callable[[Any], list[Any]]
"""Returns the values of all ranks, by rank; called by all of them alike. Values are those of JSON."""

LOOK_SECONDS = 0.02
"""How long a rank waits for its own process group before it looks at the others'."""


class GatheredStore(dist.Store):  # type: ignore[name-defined,misc]
    """The store by which torch's process groups find each other: `start_together` passes its values around.

    So they travel over the group's own connections, whose ranks have proved the secret.
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
        """Return a value as soon as some rank has set it.

        Raises:
            NcclError: The start was given up.
        """
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """Wait until all of these are set; `start_together` has the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(key in self._values for key in keys))
            if self._closed:
                raise NcclError("the start of the process group was given up")

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of these are set."""
        with self._changed:
            return all(key in self._values for key in keys)

    def new_values(self) -> dict[str, str]:
        """Return what this rank has set since the last call, in hexadecimal."""
        with self._changed:
            new, self._new = self._new, {}
            return new

    def add_values(self, values: Mapping[str, str]) -> None:
        """Add what another rank has set."""
        with self._changed:
            self._values.update({key: bytes.fromhex(data) for key, data in values.items()})
            self._changed.notify_all()

    def close(self) -> None:
        """End the waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


Start = Callable[[GatheredStore], Any]
"""Makes this rank's process group and connects it with all others; it may block for as long as they take."""


def start_together(
    start: Start, gather: Gather, timeout: float, check: Callable[[], object]
) -> tuple[Any, GatheredStore]:
    """Return this rank's process group, and its store, so that in the end either all ranks have one or none has.

    NCCL blocks while it starts, and where it fails on one rank the others see nothing of it. So it starts in a thread,
    while the ranks tell each other what they see, again and again, until it has started on all or failed on one.

    Args:
        start: Makes the process group.
        gather: By which the ranks tell each other what they see.
        timeout: Seconds that it may take.
        check: Raises when the group has failed.

    Raises:
        NcclError: It hasn't started on some rank. Every rank raises it, and none has a process group then.
        PeerLost, CommTimeoutError: Not all ranks have come.
    """
    store = GatheredStore()
    starting = _Starting(start, store)
    until = time.monotonic() + timeout
    try:
        while True:
            starting.join(LOOK_SECONDS)
            check()
            if starting.error is not None:
                raise starting.error
            running = starting.is_alive()
            problem = starting.problem
            if running and time.monotonic() > until:
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
                return starting.process_group, store
    except BaseException:
        store.close()
        starting.cancel()
        raise


class _Starting(threading.Thread):
    """The thread in which a process group starts. One that is given up aborts it when it has started after all."""

    def __init__(self, start: Start, store: GatheredStore) -> None:
        super().__init__(name="hpsearch-comm-nccl-start", daemon=True)
        self.process_group: Any = None
        self.problem: str | None = None
        self.error: BaseException | None = None
        self._make, self._store = start, store
        self._cancelled = False
        self._lock = threading.Lock()
        self.start()

    def run(self) -> None:
        try:
            process_group = self._make(self._store)
        except (RuntimeError, ValueError, NcclError) as error:  # those of torch
            self.problem = str(error).partition("\n")[0] or type(error).__name__
            return
        except BaseException as error:
            self.error = error
            return
        with self._lock:
            if not self._cancelled:
                self.process_group = process_group
                return
        process_group.abort()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            process_group, self.process_group = self.process_group, None
        abort(process_group)


def abort(process_group: Any) -> None:
    """Abort and free it in a thread, as each may block for as long as NCCL does."""
    if process_group is None:
        return
    references = [process_group]

    def end() -> None:
        references[0].abort()
        references.clear()

    in_background(end)


def in_background(step: Callable[[], object]) -> threading.Thread:
    """Return the daemon thread in which a step at the end of a process group runs, as it may block."""
    thread = threading.Thread(target=step, name="hpsearch-comm-nccl-end", daemon=True)
    thread.start()
    return thread
