"""NCCL as torch brings it: its version, and a process group that never ends the process by itself."""

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
"""What torch's watchdogs would do at an error or after a time of theirs: abort, wait in CUDA, or end the process. Each
process group reads them as it is made."""

_FOR_EVER = timedelta(days=365)
"""The group has a timeout of its own."""

_lock = threading.Lock()


def nccl_problem() -> str | None:
    """Return why this process can't use NCCL; None where it can."""
    if not torch.cuda.is_available():
        built = "is built for CPUs" if torch.version.cuda is None else "sees no GPU: look at CUDA_VISIBLE_DEVICES"
        return f"torch {built}"
    if not dist.is_nccl_available():
        return "torch is built without NCCL"
    return None


def nccl_version() -> int:
    """Return the version of the NCCL that torch has loaded, such as 22809; 0 for a torch without it."""
    if not dist.is_available() or not dist.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(10_000 * major + 100 * minor + patch)


def version_text(version: int) -> str:
    """Return such a number as text: 2.28.9."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def start_nccl(
    store: Any, rank: int, size: int, device: torch.device, max_ctas: int | None, interface: str | None
) -> Any:
    """Return a process group that is connected with all ranks; blocks until they have come.

    Args:
        store: A `torch.distributed.Store` that all ranks share.
        rank: This rank.
        size: Number of ranks.
        device: Such as `torch.device("cuda", 0)`; with its number.
        max_ctas: Maximum thread blocks of a kernel; None leaves it to NCCL.
        interface: Name of the interface that NCCL's sockets are to use, unless NCCL_SOCKET_IFNAME says so; NCCL reads
            it once in a process. None leaves the choice to NCCL.
    """
    if interface is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # with "=" it is that name, and no prefix of names
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = _FOR_EVER
    options.config.blocking = 1  # whatever TORCH_NCCL_USE_COMM_NONBLOCKING says: the ranks learn here who has started
    if max_ctas is not None:
        options.config.max_ctas = max_ctas
    with _environment():
        process_group = dist.ProcessGroupNCCL(store, rank, size, options)
    process_group.eager_connect_single_device(device)
    return process_group


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set the variables, which the user's own process groups aren't to see.

    TORCH_DISTRIBUTED_DEBUG=DETAIL, of which torch keeps a level of its own, would turn the desync debugging on again,
    and with it the error handling that ends the process.
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
