"""Memory without a name that the processes of one host share by passing its descriptor.

`memfd_create` makes it, a Unix socket carries its descriptor, and the kernel frees it with the last mapping: nothing
can be left in /dev/shm, nothing can be guessed or opened by others, and a container's small /dev/shm doesn't bound it.
Its size is sealed, so that a peer that goes wrong can't cut memory away under the others.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import select
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm.errors import CommError, PeerLost, RefusedError
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.shm.cgroups import MEMBERSHIP, ROOT, limits

_NOTE = struct.Struct("<4sqq")  # magic, number, bytes
_MAGIC = b"HPSM"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MEMINFO = Path("/proc/meminfo")
_SLICE = 0.05
"""Longest wait in seconds between two looks at whether the group still stands."""

_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Memfd:
    """A piece of shared memory of this process, as long as its descriptor is open; mappings outlive it.

    Args:
        nbytes: Its size. The memory is zero, and takes up room only where it is touched.
        descriptor: Of memory received from a peer; owned from now on. Without it, new memory is made.

    Raises:
        CommError: There is no memory or descriptor left.
        RefusedError: What was received isn't sealed memory of this size.
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        if descriptor is not None:
            self._descriptor = descriptor
            self._check()
            return
        try:
            self._descriptor = os.memfd_create("hpsearch_comm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _no_memory(nbytes, error) from error
        try:
            os.ftruncate(self._descriptor, nbytes)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        except OSError as error:
            self.close()
            raise _no_memory(nbytes, error) from error

    def map(self, offset: int = 0, nbytes: int | None = None) -> mmap.mmap:
        """Map it, or a part that starts at a multiple of the page size.

        The mapping is given back when nothing refers to it, tensors over it included; never close it by hand.
        """
        try:
            length = self.nbytes - offset if nbytes is None else nbytes
            return mmap.mmap(self._descriptor, length, offset=offset, **_UNTRACKED)
        except OSError as error:
            raise _no_memory(self.nbytes, error) from error

    def send(self, channel: socket.socket, peer: int, number: int, operation: Operation) -> None:
        """Pass it to a peer over a Unix socket that doesn't block, under a number.

        Raises:
            PeerLost: The peer has died.
            CommTimeoutError: The peer didn't take it.
        """
        wait = Wait(operation)
        note = _NOTE.pack(_MAGIC, number, self.nbytes)
        while True:
            try:
                socket.send_fds(channel, [note], [self._descriptor], socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                wait.check([peer])
                _poll(channel, select.POLLOUT)
            except OSError as error:
                raise _lost(peer, operation) from error

    @classmethod
    def receive(cls, channel: socket.socket, peer: int, number: int, nbytes: int, operation: Operation) -> Memfd:
        """Take from a peer what it sends under this number; the size must be the expected one.

        Raises:
            PeerLost: The peer has died.
            RefusedError: Something else came.
            CommTimeoutError: Nothing came.
        """
        descriptors: list[int] = []
        try:
            note = _take(channel, peer, descriptors, operation)
            if len(descriptors) != 1 or _NOTE.unpack(note) != (_MAGIC, number, nbytes):
                raise RefusedError(
                    f"expected shared memory {number} of {nbytes:,} bytes from rank {peer}, got {note.hex()} with "
                    f"{len(descriptors)} descriptors: the same version of hpsearch_comm must run on every rank"
                )
            return cls(nbytes, descriptors.pop())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """Close the descriptor; mappings stay."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check(self) -> None:
        try:
            size = os.fstat(self._descriptor).st_size
            seals = fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS)
        except OSError:
            size = seals = 0
        if size != self.nbytes or seals & _SEALS != _SEALS:
            self.close()
            raise RefusedError(
                f"expected sealed memory of {self.nbytes:,} bytes, got {size:,} bytes with seals {seals:#x}: "
                "the same version of hpsearch_comm must run on every rank"
            )


def check_available(nbytes: int, meminfo: Path = _MEMINFO, membership: Path = MEMBERSHIP, root: Path = ROOT) -> None:
    """Say so before as much memory as the machine or the container hasn't got is touched, which would end processes.

    Args:
        nbytes: That are to be used.
        meminfo: What the kernel says of the machine's memory.
        membership: See `cgroups.limits`.
        root: Likewise.

    Raises:
        CommError: There is less.
    """
    limit = limits("memory", ("memory.max",), ("memory.limit_in_bytes",), membership, root)
    free = re.search(r"^MemAvailable: *(\d+) kB", meminfo.read_text(), re.MULTILINE) if meminfo.exists() else None
    named_limits = [(int(text), "the container's limit") for text in limit if text.isdecimal()]
    if free is not None:
        named_limits.append((1024 * int(free[1]), "what is free"))
    most, name = min(named_limits, default=(nbytes, ""))
    if nbytes > most:
        raise CommError(f"{nbytes:,} bytes of shared memory can't be had, as {name} is {most:,} bytes: ask for less")


def tensor_over(mapping: mmap.mmap, offset: int, nbytes: int) -> torch.Tensor:
    """Return a uint8 tensor over a part of a mapping; it keeps the mapping."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes, offset=offset)


def _take(channel: socket.socket, peer: int, descriptors: list[int], operation: Operation) -> bytes:
    """Read one note, and put the descriptors that come with it into the list."""
    wait = Wait(operation)
    note = b""
    while len(note) < _NOTE.size:
        try:
            chunk, received, _, _ = socket.recv_fds(channel, _NOTE.size - len(note), 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            wait.check([peer])
            _poll(channel, select.POLLIN)
            continue
        except OSError as error:
            raise _lost(peer, operation) from error
        descriptors += received
        if not chunk:
            raise _lost(peer, operation)
        note += chunk
    return note


def _poll(channel: socket.socket, events: int) -> None:
    poll = select.poll()
    poll.register(channel, events)
    poll.poll(_SLICE * 1000)


def _lost(peer: int, operation: Operation) -> PeerLost:
    operation.abort_state.await_verdict(peer)
    error = PeerLost(f"rank {peer} has died: its socket for shared memory ended in {operation.signature}", peer)
    operation.abort_state.fail(error)
    return error


def _no_memory(nbytes: int, error: OSError) -> CommError:
    return CommError(
        f"{nbytes:,} bytes of shared memory can't be had ({error.strerror}): ask for less, or raise the limit of "
        "memory or of open files of this process"
    )
