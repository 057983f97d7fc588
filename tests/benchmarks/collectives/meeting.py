"""Where the ranks of a benchmark meet before each repetition, apart from everything that is measured."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous
from hpsearch_comm.errors import RendezvousError

_STRIDE = 128
"""Bytes per rank: two cache lines, so that no rank's waiting slows another's writing."""
_NAP_SECONDS = 20e-6
_DOUBLE = struct.Struct("d")


class Meeting:
    """A barrier in a file that all ranks map: they leave it within a microsecond of each other.

    Where there are fewer cores than ranks, a rank sleeps between its looks: one that span would hold up those that are
    still at work.

    Args:
        path: The file; the first rank to come makes it.
        rank: This rank.
        size: Number of ranks.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size * _STRIDE)
            self._memory = mmap.mmap(file, size * _STRIDE)
        finally:
            os.close(file)
        self._words = memoryview(self._memory).cast("Q")
        self._places = [other * _STRIDE // 8 for other in range(size) if other != rank]
        self._spin = size <= len(os.sched_getaffinity(0))
        self._count = 0

    def wait(self) -> None:
        """Wait until every rank has called it."""
        words, spin = self._words, self._spin
        self._count = count = self._count + 1
        words[self.rank * _STRIDE // 8] = count
        for place in self._places:
            while words[place] < count:
                if not spin:
                    time.sleep(_NAP_SECONDS)

    def share(self, value: float) -> list[float]:
        """Return the values of all ranks, by rank."""
        _DOUBLE.pack_into(self._memory, self.rank * _STRIDE + 8, value)
        self.wait()
        values = [float(_DOUBLE.unpack_from(self._memory, other * _STRIDE + 8)[0]) for other in range(self.size)]
        self.wait()
        return values


class Blackboard(Rendezvous):
    """Exchanges addresses through files of one directory; each group of a process has a name of its own there.

    Args:
        directory: Seen by all ranks, and by nobody else.
        name: Of the group.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Write this rank's address and wait for the others'."""
        ours = self._file(rank)
        scratch = ours.with_name(f"{ours.name}.new")
        scratch.write_text(mine)
        scratch.rename(ours)
        missing = list(range(size))
        while missing := [other for other in missing if not self._file(other).exists()]:
            if time.monotonic() > deadline:
                raise RendezvousError(f"rank {rank} didn't find the ranks {missing} in {self._directory}")
            time.sleep(0.005)
        return [self._file(other).read_text() for other in range(size)]

    def _file(self, rank: int) -> Path:
        return self._directory / f"address.{self._name}.{rank}"
