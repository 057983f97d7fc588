"""Ways on which ranks send each other messages, for tests of both what arrives and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hpsearch_comm as comm
from tests.comm.thread_ranks import run_ranks

WAYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "tcp": {"transport": "tcp"},
    "hosts": {"hosts": "aabab"},
}
LONG = 700_001
"""More than all slots of a link in shared memory hold, and more than a socket's buffers take."""


def run(way: str, size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[Any]:
    options = WAYS[way] | options
    hosts = options.pop("hosts", None)
    return run_ranks(size, work, hosts=list(hosts[:size]) if hosts else None, **options)
