"""torch's NCCL: its version, and a process group that never ends the process on its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

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
