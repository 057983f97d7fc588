"""The ranks of one host as processes, and the end of their descendants.

The launcher and agents are subreapers: the kernel makes them the parents of orphaned descendants, which they end. See
prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG. One case is not covered: if an agent on another host is killed
with SIGKILL, the kernel kills the ranks there, but processes that the ranks started may remain.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import IO

import psutil

from hpsearch_comm.launch.frames import FrameKind
from hpsearch_comm.roster import VARIABLE, describe_socket

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 30.0
"""Seconds to wait for processes that SIGKILL doesn't end, such as those that wait for a dead disk."""
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int) -> None:
    """Make the kernel send this process a signal when its parent ends. Safe between fork and exec.

    The signal is also sent when the parent's thread that forked ends, so this thread must keep running.

    Args:
        parent: The parent's process id, to check whether the parent has already ended.
        number: The signal.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def descendants(group: int | None = None) -> list[int]:
    """Return the ids of this process's descendants, including zombies. With `group`, only those in a process group."""
    processes = [child.pid for child in psutil.Process().children(recursive=True)]
    return processes if group is None else [process for process in processes if _group_of(process) == group]


def _group_of(process: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process)
    return None


def kill(processes: Iterable[int]) -> None:
    """Kill processes. Ignore those that have ended or belong to another user."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def end_descendants() -> None:
    """Kill all descendants, and wait until they have ended."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        kill(descendants())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
    print(f"processes that can't be killed: {descendants()}", file=sys.stderr, flush=True)


class RankProcess:
    """A rank's process, in a separate process group.

    If this process ends, the kernel kills the rank.

    Args:
        rank: The rank's number.
        command: The program and its arguments.
        environment: The rank's complete environment.
        elastic: Whether the rank gets a socket for messages about meeting again.

    Raises:
        OSError: The program can't be run.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str], elastic: bool) -> None:
        self.rank = rank
        self.elastic_socket: socket.socket | None = None
        """The agent's end of the socket; None if `elastic` is False."""
        with contextlib.ExitStack() as exits:
            inherited: list[int] = []
            if elastic:
                self.elastic_socket, theirs = socket.socketpair()
                inherited.append(exits.enter_context(theirs).fileno())
                environment = {**environment, VARIABLE: describe_socket(theirs.fileno())}
            self.process = subprocess.Popen(
                command,
                bufsize=0,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=inherited,
                # Safe after fork: acquires no lock that another thread may hold.
                preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
            )
        assert self.process.stdout
        assert self.process.stderr
        self.outputs: dict[IO[bytes], FrameKind] = {
            self.process.stdout: FrameKind.STDOUT,
            self.process.stderr: FrameKind.STDERR,
        }
        """The rank's standard output and error, in non-blocking mode."""
        for stream in self.outputs:
            os.set_blocking(stream.fileno(), False)

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process group: the rank, and its descendants that haven't left the group."""
        # The rank hasn't been reaped, so the group's id can't have been reused.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def reap(ranks: Sequence[RankProcess]) -> list[RankProcess]:
    """Reap all children that have ended, including adopted orphans; return the ranks, those killed by a signal first.

    The order of ranks that ended between two calls is unknown. A rank that was killed can't have failed because of
    another rank's error, so it comes first.
    """
    by_process = {rank.process.pid: rank for rank in ranks}
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            rank = by_process.get(child.si_pid)
            if rank is None:
                os.waitpid(child.si_pid, 0)
            else:
                rank.process.poll()
                ended.append(rank)
    return sorted(ended, key=lambda rank: (rank.process.returncode >= 0, rank.rank))
