"""The shared segment of the ranks on one host: barrier, signatures, staging memory, buffers.

The staging memory of a rank, which its peers read, has two sides. They are written alternately, so that a side is never
written while it is read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import SIGNATURE_BYTES, Signature
from hpsearch_comm.shm import futex
from hpsearch_comm.shm.barrier import LINE, Barrier, Words
from hpsearch_comm.shm.buffers import HUGE, POPULATE, BufferTable, SharedBuffer, advise, stride_of
from hpsearch_comm.shm.cores import core_quota, usable_cores
from hpsearch_comm.shm.memfd import Memfd, check_available, tensor_over
from hpsearch_comm.shm.shared_memory import Member, SharedMemory, size_of
from hpsearch_comm.shm.slots import Slots

CHUNK = 512 << 10
"""Size of a block in bytes: two blocks and the result fit in a core's own cache."""

_FULL = 8
"""Maximum number of members for which pieces have the full length."""

_PAGE = 4096
_MOST_ROWS = 4096


def piece_bytes(full: int, members: int) -> int:
    """Return the bytes of each member's piece for each other member.

    The pieces are smaller for many members, so that the total grows with p, not with p squared.

    Args:
        full: Bytes of a piece if there are few members.
        members: Number of members.
    """
    return full if members <= _FULL else max(_PAGE, full * _FULL // members // _PAGE * _PAGE)


class Staging:
    """Staging memory: two sides with `blocks` blocks each, for each member. A member writes its own and reads all.

    Each chunk of a collective takes one turn; the number of chunks is the same on every rank. There is a barrier
    between writing a chunk and reading it. A side is written again two chunks later: by then its readers have arrived
    at the barrier of the chunk in between.

    Args:
        words: The mapping.
        start: Byte offset of the first member's first side.
        members: Number of members.
        blocks: Number of blocks of a side.
        capacity: Bytes of a block.

    Attributes:
        turn: The number of the next chunk.
    """

    def __init__(self, words: Words, start: int, members: int, blocks: int, capacity: int) -> None:
        tensor = words.tensor

        def view(member: int, side: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
            return tensor(start + ((member * 2 + side) * blocks + block) * capacity, dtype, numel)

        @lru_cache(_MOST_ROWS)
        def row(side: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
            return tuple(view(member, side, 0, dtype, numel) for member in range(members))

        self._view, self._row = view, row
        self.capacity = capacity
        self.turn = 0

    @staticmethod
    def nbytes(members: int, blocks: int, capacity: int) -> int:
        """Return the bytes of memory for the staging memory."""
        return members * 2 * blocks * capacity

    def row(self, turn: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
        """Return a view of each member's first block, on the side of this turn."""
        return self._row(turn & 1, dtype, numel)

    def view(self, member: int, turn: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first `numel` elements of a member's block, on the side of this turn."""
        return self._view(member, turn & 1, block, dtype, numel)


# The first page is shared by all members.
_PAGE = 4096
_ASLEEP = 0
# Then each member has a page. Words that different ranks write are at least a cache line apart.
_ARRIVALS = 0
_ADDED = 20 * LINE
_COPIED = 22 * LINE
_TRIAL = 4 * LINE
_FACTS = 5 * LINE
_SIGNATURES = 12 * LINE, 16 * LINE  # used alternately

_PLACE = struct.Struct("<qq")  # after the signature: number of a shared buffer or -1, byte offset in it
_MOST_CORES = 1024
_PROCESS = struct.Struct(f"<QQd{_MOST_CORES // 8}s")  # PID namespace, PID, core quota, cores


class ShmSegment:
    """This rank's view of the segment that the ranks of one host share. All members create it and make the same calls.

    The segment has a page for all, a page for each member, staging memory and slots: less than 12 MiB for each member.
    Only pages that have been used occupy memory, until the last member has closed the segment.

    Args:
        rank: This rank.
        members: The ranks of this host, including this one.
        descriptors: A connected Unix stream socket to each other member; the caller closes them.
        abort_state: The group's abort state.
        timeout: Seconds to wait for the other members while the segment is created.

    Attributes:
        members: The ranks of this host, in ascending order.
        size: Number of members.
        index: This rank's index among the members.
        barrier: The barrier of all members.
        cores: Number of cores that the members have together.
        may_spin: Whether each member has its own core and interpreter, so that its waits may hold them.
        inputs: Staging memory with a block for each member: a block holds the values that its member has to reduce.
        results: Staging memory with one block.
        slots: Slots through which the chain passes chunks from member to member.

    Raises:
        PeerLost: A member has died.
        CommTimeoutError: A member didn't start in time.
        CommError: There is no memory left.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[int],
        descriptors: Mapping[int, socket.socket],
        abort_state: AbortState,
        *,
        timeout: float = 60.0,
    ) -> None:
        self.members = tuple(sorted(members))
        self.size = len(self.members)
        self.index = self.members.index(rank)
        self._abort_state = abort_state
        self._descriptors = dict(descriptors)
        for descriptor in self._descriptors.values():
            descriptor.setblocking(False)
        self._buffers = BufferTable()
        self._share_count = 0
        self._turn = 0
        try:
            self._make(Operation(rank, Signature(0, "barrier", "direct").pack(), timeout, abort_state))
        except BaseException:
            self.close()
            raise

    def _make(self, forming: Operation) -> None:
        size, index = self.size, self.index
        block = piece_bytes(CHUNK, size)
        inputs = (1 + size) * _PAGE
        results = inputs + Staging.nbytes(size, size, block)
        slots = results + Staging.nbytes(size, 1, block)
        nbytes = slots + Slots.nbytes(size)
        with contextlib.closing(self._share(forming, nbytes)) as memfd:
            mapping = memfd.map()
        self._bytes = memoryview(mapping)
        self._words = Words(tensor_over(mapping, 0, nbytes), self._bytes)
        trial = _page(index) + _TRIAL
        futex.check_works(self._words.base + trial, self._words.view, trial // 4)
        self.inputs = Staging(self._words, inputs, size, size, block)
        self.results = Staging(self._words, results, size, 1, block)
        arrivals = [_page(member) + _ARRIVALS for member in range(size)]
        self.barrier = Barrier(self._words, arrivals, _ASLEEP, index, self.members)
        added, copied = ([_page(member) + offset for member in range(size)] for offset in (_ADDED, _COPIED))
        self.slots = Slots(self._words, slots, added, copied, index, self.members, self.barrier)
        signatures = [
            [
                (peer, self._bytes[_signature(member, turn) :][:SIGNATURE_BYTES])
                for member, peer in enumerate(self.members)
            ]
            for turn in (0, 1)
        ]
        self._own = [of_turn.pop(index)[1] for of_turn in signatures]
        self._theirs = signatures
        self._scratch = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._abort_state.on_change(self._wake)
        self._compare_processes(forming)

    def meet(self, operation: Operation) -> None:
        """Start an operation: wait for all members, and compare their signatures with ours.

        Raises:
            MismatchError: A member runs another operation.
            CommError: The wait failed; see `Barrier.wait`.
        """
        self.sign(operation)
        self.barrier.wait(operation)
        self.compare(operation)

    def sign(self, operation: Operation) -> None:
        """Write this rank's signature, before the barrier of `meet`."""
        turn = self._turn = 1 - self._turn
        self._own[turn][:] = operation.packed

    def compare(self, operation: Operation) -> None:
        """Compare the members' signatures, after the barrier of `meet`."""
        packed = operation.packed
        for peer, signature in self._theirs[self._turn]:
            theirs = signature.tobytes()
            if theirs != packed:
                raise operation.disagree(peer, theirs, packed)

    def meet_at(self, operation: Operation, location: tuple[SharedBuffer, int] | None) -> list[tuple[int, int]]:
        """Run `meet`, and exchange the locations of the members' tensors.

        Args:
            operation: The operation that starts.
            location: The location of this rank's tensor, as `find` returned it.

        Returns:
            Each member's location: number of the shared buffer and byte offset in it; (-1, 0) for other memory.
        """
        number, offset = (location[0].number, location[1]) if location is not None else (-1, 0)
        _PLACE.pack_into(self._bytes, _signature(self.index, 1 - self._turn) + SIGNATURE_BYTES, number, offset)
        self.meet(operation)
        turn = self._turn
        return [
            _PLACE.unpack_from(self._bytes, _signature(member, turn) + SIGNATURE_BYTES) for member in range(self.size)
        ]

    def empty(self, operation: Operation, nbytes: int) -> torch.Tensor:
        """Create a buffer that all members can access, and return this rank's part. Every member must call it.

        The memory is zero. It lives as long as tensors in it.

        Args:
            operation: The operation. Its signature must contain the size, so that different sizes are detected.
            nbytes: Bytes of each member's part.

        Returns:
            A uint8 tensor of `nbytes` elements.
        """
        self.meet(operation)
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        self._share_count += 1
        with contextlib.closing(self._share(operation, self.size * stride_of(nbytes), self._share_count)) as memfd:
            own_buffer = self._buffers.add(memfd, self._share_count, nbytes, self.index, self.size)
        self.barrier.wait(operation)
        return own_buffer

    def share(self, operation: Operation, nbytes: int, locks: int) -> SharedMemory:
        """Create memory that all members share. Every member must call it.

        Args:
            operation: The operation. Its signature must contain the size and the number of locks.
            nbytes: Bytes of data.
            locks: Number of locks.
        """
        self.meet(operation)
        self._share_count += 1
        size = size_of(self.size, locks, nbytes)
        if self.index == 0:
            check_available(size)
        with contextlib.closing(self._share(operation, size, self._share_count)) as memfd:
            mapping = memfd.map()
        if nbytes >= HUGE:
            advise(mapping, mmap.MADV_HUGEPAGE)
        member = Member(self.members[self.index], self.members, operation.timeout, self._abort_state)
        memory = SharedMemory(mapping, nbytes, locks, member)
        if self.index == 0:
            advise(mapping, POPULATE)  # if memory is short, this raises an error now and avoids a crash later
            for lock in memory.locks:
                lock.make()
        self.barrier.wait(operation)
        return memory

    def find(self, tensor: torch.Tensor) -> tuple[SharedBuffer, int] | None:
        """Return the shared buffer of a contiguous tensor and the byte offset in it; None for other memory."""
        return self._buffers.find(tensor)

    def scratch(self, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return private memory of this rank for partial results. Its previous content is lost."""
        nbytes = numel * dtype.itemsize
        if self._scratch.numel() < nbytes:
            self._scratch = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return self._scratch[:nbytes].view(dtype)

    def close(self) -> None:
        """Release the memory except for buffers with tensors of the user."""
        self._buffers.clear()
        # Never unmap explicitly: the memory is released with the last reference to it.
        for name in ("_bytes", "_words", "_own", "_theirs", "inputs", "results", "slots", "barrier"):
            self.__dict__.pop(name, None)

    def _wake(self) -> None:
        """Wake this rank's waits, because the group has failed or a peer has left."""
        barrier = self.__dict__.get("barrier")  # another thread may be closing the segment
        if barrier is not None:
            barrier.wake()

    def _share(self, operation: Operation, nbytes: int, number: int = 0) -> Memfd:
        """Return new memory that all members share: the first member creates it and sends it to the others."""
        first = self.members[0]
        if self.index > 0:
            return Memfd.receive(self._descriptors[first], first, number, nbytes, operation)
        memfd = Memfd(nbytes)
        try:
            for peer in self.members[1:]:
                memfd.send(self._descriptors[peer], peer, number, operation)
        except BaseException:
            memfd.close()
            raise
        return memfd

    def _compare_processes(self, operation: Operation) -> None:
        """Exchange the members' processes and cores, and decide how to wait."""
        usable = usable_cores()
        cores = sum(1 << core for core in usable if core < _MOST_CORES).to_bytes(_MOST_CORES // 8, "little")
        facts = _PROCESS.pack(Path("/proc/self/ns/pid").stat().st_ino, os.getpid(), core_quota(), cores)
        start = _page(self.index) + _FACTS
        self._bytes[start : start + _PROCESS.size] = facts
        self.barrier.wait(operation)
        everyone = [_PROCESS.unpack_from(self._bytes, _page(member) + _FACTS) for member in range(self.size)]
        processes = {(namespace, process) for namespace, process, _, _ in everyone}
        together = 0
        for _, _, _, theirs in everyone:
            together |= int.from_bytes(theirs, "little")
        self.cores = int(min(together.bit_count(), *(quota for _, _, quota, _ in everyone)))
        self.barrier.apart = len(processes) == self.size
        self.may_spin = self.barrier.may_spin = self.barrier.apart and self.size <= self.cores


def _page(member: int) -> int:
    return (1 + member) * _PAGE


def _signature(member: int, turn: int) -> int:
    return _page(member) + _SIGNATURES[turn]
