"""Detect that memory ran out, and describe how much a process uses and may use."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")

_MESSAGES = (
    *("can't allocate memory", "Cannot allocate memory", "bad_alloc"),
    *("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)
"""Out-of-memory messages of a RuntimeError: from torch's CPU allocator, the C++ library, and CUDA libraries."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is out of memory: of Python, NumPy, or torch on any device."""
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` forms a cycle
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return True
        if isinstance(cause, RuntimeError) and any(message in str(cause) for message in _MESSAGES):
            return True
        cause = cause.__cause__
    return False


def memory_usage() -> str:
    """Return the resident memory of this process and its limit: `3.1 GiB resident, of 4 GiB (RLIMIT_AS, addresses)`."""
    limit, source = min(_limits())
    return f"{_size(psutil.Process().memory_info().rss)} resident, of {_size(limit)} ({source})"


def _limits() -> Iterator[tuple[int, str]]:
    yield psutil.virtual_memory().total, "the machine's memory"
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft, "RLIMIT_AS, addresses"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            yield int((_CGROUPS / name).read_text(encoding="ascii")), "the container's memory"
        except (OSError, ValueError):  # the file doesn't exist, or contains `max`
            continue


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
