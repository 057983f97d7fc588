"""Anonymous shared memory, which the processes of one host share by passing its file descriptor.

`memfd_create` creates it, a Unix socket passes its descriptor, and the kernel frees it with the last mapping. Nothing
can be left in /dev/shm, nobody else can guess a name and open it, and a container's small /dev/shm doesn't limit it.
Its size is sealed, so that a faulty peer can't truncate it while others use it.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from hpsearch_comm.errors import CommError, PeerLost, RefusedError
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.shm.cores import MEMBERSHIP, ROOT, limits

T = TypeVar("T")

_NOTE = struct.Struct("<4sqq")  # magic, number, bytes
_MAGIC = b"HPSM"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MEMINFO = Path("/proc/meminfo")
_SLICE = 0.05
"""Longest wait in seconds between two checks of the group's abort state."""

_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Memfd:
    """A block of shared memory and its file descriptor. Mappings stay valid after the descriptor is closed.

    Args:
        nbytes: Size in bytes. The memory is zero; pages are allocated on first use.
        descriptor: Descriptor received from a peer; this object closes it. None creates new memory.

    Raises:
        CommError: There is no memory or descriptor left.
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        if descriptor is not None:
            self._descriptor = descriptor
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
        """Map the memory, or a part that starts at a multiple of the page size.

        The mapping is released when nothing refers to it any more, including tensors. Don't close it explicitly.
        """
        try:
            length = self.nbytes - offset if nbytes is None else nbytes
            return mmap.mmap(self._descriptor, length, offset=offset, **_UNTRACKED)
        except OSError as error:
            raise _no_memory(self.nbytes, error) from error

    def send(self, channel: socket.socket, peer: int, number: int, operation: Operation) -> None:
        """Send the descriptor with a number to a peer, over a non-blocking Unix socket.

        Raises:
            PeerLost: The peer has died.
            CommTimeoutError: The peer didn't receive it in time.
        """
        note = _NOTE.pack(_MAGIC, number, self.nbytes)
        send = partial(socket.send_fds, channel, [note], [self._descriptor], socket.MSG_NOSIGNAL)
        _when_ready(send, channel, select.POLLOUT, peer, operation)

    @classmethod
    def receive(cls, channel: socket.socket, peer: int, number: int, nbytes: int, operation: Operation) -> Memfd:
        """Receive memory of this number and size from a peer.

        Raises:
            PeerLost: The peer has died.
            RefusedError: The peer sent something else.
            CommTimeoutError: The peer sent nothing in time.
        """
        receive = partial(socket.recv_fds, channel, _NOTE.size, 1, socket.MSG_CMSG_CLOEXEC)
        note, descriptors, _, _ = _when_ready(receive, channel, select.POLLIN, peer, operation)
        if not note:
            raise _lost(peer, operation)
        if descriptors and note == _NOTE.pack(_MAGIC, number, nbytes):
            return cls(nbytes, descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        raise RefusedError(
            f"expected shared memory {number} of {nbytes:,} bytes from rank {peer}, got {note.hex()} with "
            f"{len(descriptors)} descriptors: the same version of hpsearch_comm must run on every rank"
        )

    def close(self) -> None:
        """Close the descriptor; mappings stay valid."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def check_available(nbytes: int, meminfo: Path = _MEMINFO, membership: Path = MEMBERSHIP, root: Path = ROOT) -> None:
    """Check that the machine and the container have enough memory. Otherwise its use would get processes killed.

    Args:
        nbytes: Bytes to be used.
        meminfo: The kernel's file about the machine's memory.
        membership: See `cores.limits`.
        root: See `cores.limits`.

    Raises:
        CommError: Less memory is available.
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
    """Return a uint8 tensor in a part of a mapping; it keeps the mapping alive."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes, offset=offset)


def _when_ready(call: Callable[[], T], channel: socket.socket, event: int, peer: int, operation: Operation) -> T:
    """Call a function of a non-blocking socket until it doesn't have to wait, and return its result."""
    wait = Wait(operation)
    while True:
        try:
            return call()
        except BlockingIOError:
            wait.check([peer])
            _poll(channel, event)
        except OSError as error:
            raise _lost(peer, operation) from error


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
