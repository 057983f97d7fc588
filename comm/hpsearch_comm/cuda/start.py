"""Start a torch process group on all ranks or on none, and abort one without waiting for it."""

from __future__ import annotations

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
    """The thread in which a process group starts. If it starts only after `cancel`, the thread aborts it."""

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
        except (RuntimeError, ValueError, NcclError) as error:  # torch's errors
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
