"""The ranks of one host: processes that an agent starts, signals and reaps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO

from hpsearch_comm.launch.frames import FrameKind
from hpsearch_comm.launch.orphans import die_with
from hpsearch_comm.roster import VARIABLE, describe_socket

__all__ = ["RankProcess", "reap"]


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
                # The other threads of this process wait in system calls: they hold no lock that this takes.
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
