"""The ranks of one host as processes, and what they leave behind.

The kernel hands orphans to the nearest ancestor that asks for them, which ends them. See prctl(2),
PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG. What escapes: a process that a rank has started on another host, if the
agent there is killed by force; the kernel ends the ranks themselves.
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


def descendants(group: int | None = None) -> list[int]:
    """List the processes that descend from this one, or those in a process group; those that have ended count too."""
    processes = [child.pid for child in psutil.Process().children(recursive=True)]
    return processes if group is None else [process for process in processes if _group_of(process) == group]


def _group_of(process: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process)
    return None


def end(processes: Iterable[int], number: int) -> None:
    """Send processes a signal; those that have ended, or are another user's, don't count."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end_descendants() -> None:
    """Kill all descendants, and wait until they are gone."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        end(descendants(), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
    print(f"processes that can't be killed: {descendants()}", file=sys.stderr, flush=True)


class RankProcess:
    """A rank's process, in a group of its own.

    If this process ends, the kernel kills the rank.

    Args:
        rank: Its number.
        command: The program and its arguments.
        environment: All of its variables.
        with_input: Whether its standard input is a pipe; else it is empty.
        elastic: Whether it has a socket by which the launcher tells it whom it meets.

    Raises:
        OSError: The program can't be run.
    """

    def __init__(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str], with_input: bool, elastic: bool
    ) -> None:
        self.rank = rank
        self.elastic_socket: socket.socket | None = None
        """This end of the socket."""
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
                stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=inherited,
                # It takes no lock that another thread of this process may hold.
                preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
            )
        assert self.process.stdout
        assert self.process.stderr
        self.outputs: dict[IO[bytes], FrameKind] = {
            self.process.stdout: FrameKind.STDOUT,
            self.process.stderr: FrameKind.STDERR,
        }
        """Its standard output and error, which don't block."""
        for stream in self.outputs:
            os.set_blocking(stream.fileno(), False)

    def signal(self, number: int) -> None:
        """Send a signal to the rank and what it has started, but for what has left its process group."""
        # It hasn't been reaped, so the group's number can be nobody else's.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def reap(ranks: Sequence[RankProcess]) -> list[RankProcess]:
    """Take leave of all children that have ended, orphans among them; return the ranks, those killed by a signal first.

    Ranks that are found together have ended between two looks. One that was killed can't have failed because of
    another, which has raised at most.
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
