"""What the ranks of one host share: words to meet by, signatures to compare, staging memory, buffers, message slots.

The staging memory of a rank, which its peers read, has two sides, written in turn, so that writing and reading never
meet.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import SIGNATURE_BYTES, Signature
from hpsearch_comm.shm import futex
from hpsearch_comm.shm.barrier import LINE, Barrier, Bell, Words
from hpsearch_comm.shm.buffers import HUGE, POPULATE, BufferTable, SharedBuffer, advise, stride_of
from hpsearch_comm.shm.cores import core_quota, usable_cores
from hpsearch_comm.shm.memfd import Memfd, check_available, tensor_over
from hpsearch_comm.shm.message_slots import SLOT_BYTES, MessageSlots
from hpsearch_comm.shm.shared_memory import Member, SharedMemory, size_of
from hpsearch_comm.shm.slots import Slots

CHUNK = 512 << 10
"""Bytes of a block: with its like from a peer and the result it stays in a core's own cache."""

_FULL = 8
"""Members up to which each has pieces of full length for all others."""

_PAGE = 4096
_MOST_ROWS = 4096


def piece_bytes(full: int, members: int) -> int:
    """Return the bytes of what each member has for each: fewer for many, so that all grows as they, not as p squared.

    Args:
        full: Bytes where they are few.
        members: How many they are.
    """
    return full if members <= _FULL else max(_PAGE, full * _FULL // members // _PAGE * _PAGE)


class Staging:
    """Two sides of `blocks` blocks for each member; a member writes its own and reads everybody's.

    Every collective takes as many turns as it has chunks, the same number on every rank, and a barrier lies between
    writing a chunk and reading it. A side is written again two chunks later: by then its readers have come to the
    barrier of the chunk between.

    Args:
        words: The mapping.
        start: Byte offset of the first member's first side.
        members: How many ranks share it.
        blocks: How many blocks a side has.
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
        """Return how much memory it takes."""
        return members * 2 * blocks * capacity

    def row(self, turn: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
        """Return every member's view of this kind, of the first block."""
        return self._row(turn & 1, dtype, numel)

    def view(self, member: int, turn: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first `numel` elements of a member's block, on the side whose turn it is."""
        return self._view(member, turn & 1, block, dtype, numel)


# The first page belongs to nobody.
_PAGE = 4096
_COUNTERS = 0, 2 * LINE
# A page of each member follows. What different ranks write is at least a cache line apart.
_ARRIVALS = 0
_BELLS = 2 * LINE, 24 * LINE  # of the channels
_ADDED = 20 * LINE
_COPIED = 22 * LINE
_TRIAL = 4 * LINE
_FACTS = 5 * LINE
_SIGNATURES = 12 * LINE, 16 * LINE  # taken in turn

CHANNELS = len(_BELLS)
"""Between each two members: one for collectives, and one for what two ranks send each other beside them."""

_PLACE = struct.Struct("<qq")  # behind the signature: number of a shared buffer or -1, byte offset in it
_MOST_CORES = 1024
_PROCESS = struct.Struct(f"<QQd{_MOST_CORES // 8}s")  # namespace and number of the process, core quota, cores


class ShmSegment:
    """This rank's end of what the ranks of one host share. All members make it together, and make the same calls.

    One piece of memory holds it: a page for all, a page for each member, staging memory and link slots, less than
    21 MiB for each member. Room is taken only by those pages that have been used, until the last member has closed.

    Args:
        rank: This rank.
        members: The ranks of this host, this one included.
        descriptors: A connected Unix stream socket to each other member; owned from now on.
        abort_state: The group's.
        timeout: Seconds to wait for the others here.

    Attributes:
        members: The ranks of this host, in rising order.
        size: How many they are.
        index: This rank's place among them.
        bell: This rank's; links ring it.
        bells: That one, and the bell of the second channel.
        barrier: Where all members meet.
        cores: How many cores the members have together.
        may_spin: Whether each member has a core and an interpreter of its own, so that its waits may hold them.
        inputs: Staging memory with a block for each member, for what that member is to reduce.
        results: Staging memory with one block.
        slots: Memory through which chunks go from member to member.

    Raises:
        PeerLost: A member has died.
        CommTimeoutError: A member didn't come.
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
        block, self._slot_bytes = piece_bytes(CHUNK, size), piece_bytes(SLOT_BYTES, size)
        inputs = (1 + size) * _PAGE
        results = inputs + Staging.nbytes(size, size, block)
        slots = results + Staging.nbytes(size, 1, block)
        self._messages_start = slots + Slots.nbytes(size)
        nbytes = self._messages_start + CHANNELS * size * size * MessageSlots.nbytes(self._slot_bytes)
        with contextlib.closing(self._share(forming, nbytes)) as memfd:
            mapping = memfd.map()
        self._bytes = memoryview(mapping)
        self._words = Words(tensor_over(mapping, 0, nbytes), self._bytes)
        trial = _page(index) + _TRIAL
        futex.check_works(self._words.base + trial, self._words.view, trial // 4)
        self.bells = [self.bell_of(index, channel) for channel in range(CHANNELS)]
        self.bell = self.bells[0]
        self.inputs = Staging(self._words, inputs, size, size, block)
        self.results = Staging(self._words, results, size, 1, block)
        arrivals = [_page(member) + _ARRIVALS for member in range(size)]
        self.barrier = Barrier(self._words, arrivals, _COUNTERS, index, self.members)
        added, copied = ([_page(member) + offset for member in range(size)] for offset in (_ADDED, _COPIED))
        self.slots = Slots(self._words, slots, added, copied, index, self.members, self.barrier, self.bell)
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
        _wake_on_change(self, self._abort_state)
        self._compare_processes(forming)

    def meet(self, operation: Operation) -> None:
        """Begin an operation: wait for all members, and compare their signatures with ours.

        Raises:
            MismatchError: A member is in another operation.
            CommError: Of the wait.
        """
        self.sign(operation)
        self.barrier.wait(operation)
        self.compare(operation)

    def sign(self, operation: Operation) -> None:
        """Do what `meet` does before the barrier."""
        turn = self._turn = 1 - self._turn
        self._own[turn][:] = operation.packed

    def compare(self, operation: Operation) -> None:
        """Do what `meet` does behind the barrier."""
        packed = operation.packed
        for peer, signature in self._theirs[self._turn]:
            theirs = signature.tobytes()
            if theirs != packed:
                raise operation.disagree(peer, theirs, packed)

    def meet_at(self, operation: Operation, location: tuple[SharedBuffer, int] | None) -> list[tuple[int, int]]:
        """Do as `meet`, and tell each other where the tensors lie.

        Args:
            operation: The one that begins.
            location: What `find` said of this rank's tensor.

        Returns:
            Each member's place, as number of the shared buffer and byte in it; (-1, 0) for other memory.
        """
        number, offset = (location[0].number, location[1]) if location is not None else (-1, 0)
        _PLACE.pack_into(self._bytes, _signature(self.index, 1 - self._turn) + SIGNATURE_BYTES, number, offset)
        self.meet(operation)
        turn = self._turn
        return [
            _PLACE.unpack_from(self._bytes, _signature(member, turn) + SIGNATURE_BYTES) for member in range(self.size)
        ]

    def empty(self, operation: Operation, nbytes: int) -> torch.Tensor:
        """Make a buffer that all members can reach, and return this rank's own part of it; every member calls it.

        The memory is zero. It lives as long as tensors over it.

        Args:
            operation: Its signature must tell the size, so that ranks which want different sizes find out.
            nbytes: Of each member's part.

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
        """Make one piece of memory for all members; every member calls it.

        Args:
            operation: Its signature must tell the size and the locks.
            nbytes: Of data.
            locks: How many.
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
            advise(mapping, POPULATE)  # where memory is short an error now, not a crash later
            for lock in memory.locks:
                lock.make()
        self.barrier.wait(operation)
        return memory

    def find(self, tensor: torch.Tensor) -> tuple[SharedBuffer, int] | None:
        """Say in which shared buffer a contiguous tensor lies, and at which byte; None for other memory."""
        return self._buffers.find(tensor)

    def scratch(self, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return memory of this rank's own for partial results; what was in it is lost."""
        nbytes = numel * dtype.itemsize
        if self._scratch.numel() < nbytes:
            self._scratch = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return self._scratch[:nbytes].view(dtype)

    def messages(self, sender: int, receiver: int, channel: int = 0) -> MessageSlots:
        """Return the slots of a channel through which messages go from one member to another."""
        number = (channel * self.size + sender) * self.size + receiver
        start = self._messages_start + number * MessageSlots.nbytes(self._slot_bytes)
        return MessageSlots(self._words, start, self._slot_bytes)

    def bell_of(self, member: int, channel: int = 0) -> Bell:
        """Return a member's bell of a channel, to ring it."""
        return Bell(self._words, _page(member) + _BELLS[channel])

    def close(self) -> None:
        """Close the sockets, and release the memory as far as no tensor of the user's lies in it."""
        for descriptor in self._descriptors.values():
            descriptor.close()
        self._buffers.clear()
        # Nothing may be unmapped by hand: the memory goes with the last reference to it.
        for name in ("_bytes", "_words", "_own", "_theirs", "bell", "bells", "inputs", "results", "slots", "barrier"):
            self.__dict__.pop(name, None)

    def _share(self, operation: Operation, nbytes: int, number: int = 0) -> Memfd:
        """Get the same new memory on every member: the first one makes it and sends it to the others."""
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
        """Tell each other which process and which cores we have, and find out how to wait."""
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


def _wake_on_change(shm: ShmSegment, abort_state: AbortState) -> None:
    """Wake this rank's waits when the group fails; the abort state, which outlives the segment, must not keep it."""
    reference = weakref.ref(shm)

    def wake() -> None:
        shm = reference()
        if shm is None:
            return
        # Taken from the dictionary: another thread may be closing the segment.
        barrier, bells = shm.__dict__.get("barrier"), shm.__dict__.get("bells")
        if barrier is not None and bells is not None:
            barrier.wake()
            for bell in bells:
                bell.ring()

    abort_state.on_change(wake)
