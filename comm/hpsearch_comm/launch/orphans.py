"""Leaves no process behind: the kernel hands orphans to the nearest ancestor that asks for them, which ends them.

See prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG. What escapes: a process that a rank has started on another
host, if the agent there is killed by force; the kernel ends the ranks themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["adopt_orphans", "descendants", "die_with", "end_descendants", "in_group"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 30.0
"""Seconds after which a process that even SIGKILL doesn't end, such as one that waits for a dead disk, is left."""
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int) -> None:
    """Make the kernel send this process a signal when its parent ends. Safe between fork and exec.

    Args:
        parent: The parent's process id, to see whether it has ended already. Its thread that forked must live on.
        number: The signal.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def descendants(ancestor: int) -> list[int]:
    """List the processes that descend from one, parents before their children; those that have ended count too."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name, in parentheses, may hold anything.
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    processes = [ancestor]
    for process in processes:
        processes += children.get(process, [])
    return processes[1:]


def in_group(group: int, processes: Iterable[int]) -> list[int]:
    """Return those of the processes that are in this process group."""
    members = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process) == group:
                members.append(process)
    return members


def end_descendants() -> None:
    """Kill all descendants, and wait until they are gone."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for process in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
    print(f"processes that can't be killed: {descendants(os.getpid())}", file=sys.stderr, flush=True)
