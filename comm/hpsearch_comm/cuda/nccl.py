"""torch's NCCL: its version, and the start and end of a process group that never ends the process on its own."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from hpsearch_comm.errors import NcclError

_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
"""Variables that switch off the actions of torch's watchdogs after an error or timeout: abort, wait in CUDA, or end the
process. A process group reads them when it is created."""

_FOR_EVER = timedelta(days=365)
"""Timeout for torch, never reached: the group has its own timeout."""

LOOK_SECONDS = 0.02
"""Seconds for which a rank waits for its own process group before it checks the other ranks again."""

_lock = threading.Lock()


def nccl_problem() -> str | None:
    """Return why this process can't use NCCL; None if it can."""
    if not torch.cuda.is_available():
        built = "is built for CPUs" if torch.version.cuda is None else "sees no GPU: look at CUDA_VISIBLE_DEVICES"
        return f"torch {built}"
    if not dist.is_nccl_available():
        return "torch is built without NCCL"
    return None


def nccl_version() -> int:
    """Return the version of NCCL that torch has loaded, such as 22809; 0 if torch has no NCCL."""
    if not dist.is_available() or not dist.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(10_000 * major + 100 * minor + patch)


def version_text(version: int) -> str:
    """Format a version number such as 22809 as text: 2.28.9."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def start_nccl(
    store: Any, rank: int, size: int, device: torch.device, max_ctas: int | None, interface: str | None
) -> Any:
    """Return a process group that is connected with all ranks. Block until all ranks have started theirs.

    Args:
        store: A `torch.distributed.Store` that all ranks share.
        rank: This rank.
        size: Number of ranks.
        device: The device with its index, such as `torch.device("cuda", 0)`.
        max_ctas: Maximum thread blocks of a kernel; None leaves the choice to NCCL.
        interface: Name of the interface for NCCL's sockets, unless NCCL_SOCKET_IFNAME is set. NCCL reads this variable
            once per process. None leaves the choice to NCCL.
    """
    if interface is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=" means the exact name, not a prefix
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = _FOR_EVER
    options.config.blocking = 1  # overrides TORCH_NCCL_USE_COMM_NONBLOCKING: the start must be complete here
    if max_ctas is not None:
        options.config.max_ctas = max_ctas
    with _environment():
        process_group = dist.ProcessGroupNCCL(store, rank, size, options)
    process_group.eager_connect_single_device(device)
    return process_group


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set the variables temporarily, so that they don't affect the user's own process groups.

    TORCH_DISTRIBUTED_DEBUG=DETAIL, whose level torch caches, would switch desync debugging on again, and with it the
    error handling that ends the process.
    """
    with _lock:
        before = {name: os.environ.get(name) for name in _VARIABLES}
        level = get_debug_level()
        os.environ.update(_VARIABLES)
        if level == DebugLevel.DETAIL:
            set_debug_level(DebugLevel.INFO)
        try:
            yield
        finally:
            set_debug_level(level)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class GatheredStore(dist.Store):  # type: ignore[name-defined,misc]
    """The store for the start of torch's process groups. `start_together` exchanges its values between the ranks.

    So the values are sent over the group's own connections, whose ranks have proved the secret.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value for all ranks."""
        self.update({key: value.encode() if isinstance(value, str) else bytes(value)})

    def get(self, key: str) -> bytes:
        """Wait until a rank has set a value, and return it.

        Raises:
            NcclError: The start was cancelled.
        """
        self.wait([key])
        return self.values[key]

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """Wait until all keys are set. `timeout` is ignored: `start_together` has its own."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.check(keys))
            if self._closed:
                raise NcclError("the start of the process group was given up")

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return all(key in self.values for key in keys)

    def update(self, values: Mapping[str, bytes]) -> None:
        """Store values, such as another rank's."""
        with self._changed:
            self.values.update(values)
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits with an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def start_together(
    start: Callable[[GatheredStore], Any],
    gather: Callable[[Any], list[Any]],
    timeout: float,
    check: Callable[[], object],
) -> tuple[Any, GatheredStore]:
    """Start a process group on all ranks or on none. Return this rank's process group and its store.

    NCCL blocks while it starts, and if it fails on one rank, the others don't notice. So it starts in a thread, while
    the ranks repeatedly exchange their states, until it has started on all ranks or failed on one.

    Args:
        start: Creates this rank's process group and connects it with those of all other ranks. It may block.
        gather: Gathers a JSON value from each rank, and returns the values by rank. All ranks must call it.
        timeout: Maximum seconds for the start.
        check: Raises an error if the group has failed.

    Raises:
        NcclError: The start failed on some rank. Every rank raises it, and no rank keeps a process group.
        PeerLost, CommTimeoutError: Not all ranks take part.
    """
    store = GatheredStore()
    starting = in_background(partial(start, store))
    until = time.monotonic() + timeout
    try:
        while True:
            wait([starting], LOOK_SECONDS)
            check()
            done, problem = starting.done(), None
            error = starting.exception() if done else None
            if error is not None:
                if not isinstance(error, RuntimeError | ValueError | NcclError):  # torch's errors
                    raise error
                problem = str(error).partition("\n")[0] or type(error).__name__
            elif not done and time.monotonic() > until:
                problem = (
                    f"it was still waiting for its peers after {timeout:g} s: can they reach each other by the "
                    "interface that NCCL chooses? See HPSEARCH_COMM_INTERFACE, NCCL_SOCKET_IFNAME, and NCCL_DEBUG=INFO "
                    "for what it does"
                )
            everyone = gather([done, problem, {key: value.hex() for key, value in store.values.copy().items()}])
            for rank, (_, theirs, values) in enumerate(everyone):
                if theirs is not None:
                    raise NcclError(f"NCCL hasn't started on rank {rank}: {theirs}")
                store.update({key: bytes.fromhex(value) for key, value in values.items()})
            if all(started for started, _, _ in everyone):
                return starting.result(), store
    except BaseException:
        store.close()
        # Also if it starts only later.
        starting.add_done_callback(lambda started: started.exception() or in_background(started.result().abort))
        raise


def in_background(step: Callable[[], Any]) -> Future[Any]:
    """Run a step in a daemon thread, because NCCL may block for ever when it starts or ends."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(step())
        except BaseException as error:  # the future has it
            future.set_exception(error)

    threading.Thread(target=run, name="hpsearch-comm-nccl", daemon=True).start()
    return future
