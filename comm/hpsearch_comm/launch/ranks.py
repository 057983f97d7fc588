"""The ranks of one host: processes that an agent starts, signals and reaps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from hpsearch_comm.launch.orphans import die_with
from hpsearch_comm.roster import VARIABLE, describe_socket

__all__ = ["RankProcess", "reap"]

_MOST_DRAINED = 1 << 20
"""Bytes read from a pipe of a rank that has ended: what it wrote itself fits in. A child of its may write on."""
_CHUNK = 1 << 16


class RankProcess:
    """A rank's process, in a group of its own.

    If this process ends, the kernel kills the rank.

    Args:
        rank: Its number.
        command: The program and its arguments.
        environment: All of its variables.
        with_input: Whether its standard input comes from `feed`; else it is empty.
        elastic: Whether it has a socket by which the launcher tells it whom it meets.

    Raises:
        OSError: The program can't be run.
    """

    def __init__(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str], with_input: bool, elastic: bool
    ) -> None:
        self.rank = rank
        self.input: int | None = None
        """The descriptor of its standard input."""
        self.elastic_socket: socket.socket | None = None
        """This end of the socket."""
        reading, writing = zip(*(os.pipe() for _ in range(2)), strict=True)
        source, self.input = os.pipe() if with_input else (os.open(os.devnull, os.O_RDONLY), None)
        self.outputs: list[int] = list(reading)
        """The descriptors of its standard output and error, as long as they are open."""
        self.streams = dict(zip(reading, ("stdout", "stderr"), strict=True))
        inherited: list[socket.socket] = []
        try:
            if elastic:
                self.elastic_socket, theirs = socket.socketpair()
                inherited.append(theirs)
                environment = {**environment, VARIABLE: describe_socket(theirs.fileno())}
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=source,
                stdout=writing[0],
                stderr=writing[1],
                process_group=0,
                pass_fds=[sock.fileno() for sock in inherited],
                # This process has no other threads, so that it is safe.
                preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
            )
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in (source, *writing):
                os.close(descriptor)
            for sock in inherited:
                sock.close()
        for descriptor in (*reading, *([] if self.input is None else [self.input])):
            os.set_blocking(descriptor, False)

    def signal(self, number: int) -> None:
        """Send a signal to the rank and what it has started, but for what has left its process group."""
        # It hasn't been reaped, so the group's number can be nobody else's.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def read(self, descriptor: int) -> bytes | None:
        """Return what a stream brings; nothing at its end, and None where there is nothing yet."""
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def drain(self, descriptor: int) -> bytes:
        """Return what is left in a stream of a rank that has ended."""
        chunks, size = [], 0
        while size < _MOST_DRAINED and (chunk := self.read(descriptor)):
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Close what leads to it."""
        for descriptor in self.outputs:
            os.close(descriptor)
        self.outputs = []
        self.close_input()
        if self.elastic_socket is not None:
            self.elastic_socket.close()

    def close_input(self) -> None:
        """Close its standard input."""
        if self.input is not None:
            os.close(self.input)
        self.input = None


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
