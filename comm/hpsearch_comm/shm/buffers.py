"""Shared buffers: every rank of the host can access their memory, so a reduction needs no copy in or out."""

from __future__ import annotations

import errno
import mmap
import weakref

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.shm.barrier import views_of
from hpsearch_comm.shm.memfd import Memfd, tensor_over

_PAGE = mmap.PAGESIZE
HUGE = 2 << 20
"""Size of a huge page in bytes."""
POPULATE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it."""


class SharedBuffer:
    """A buffer with a part for each local rank, all in one segment. Returned by `BufferTable.find`.

    A rank maps the segment twice: its own part for the user's tensors, and the whole segment for collectives. So only
    the user's tensors keep the buffer alive: when the last of them is freed, both mappings are.

    Attributes:
        number: Number of the buffer, the same on every rank, because all ranks create buffers in the same order.
    """

    def __init__(self, number: int, mapping: mmap.mmap, stride: int) -> None:
        self.number = number
        self._stride = stride
        self._tensor = views_of(tensor_over(mapping, 0, len(mapping)))

    def part(self, member: int, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return `numel` elements of a member's part, starting at a byte offset."""
        return self._tensor(member * self._stride + offset, dtype, numel)


class BufferTable:
    """The shared buffers of this rank whose tensors are in use."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[int, SharedBuffer, weakref.ref[mmap.mmap]]] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def find(self, tensor: torch.Tensor) -> tuple[SharedBuffer, int] | None:
        """Return the buffer of a contiguous tensor and the byte offset in it; None for other memory.

        Also return None if the offset isn't aligned to the dtype: torch can't view the buffer there.
        """
        if not self._buffers:
            return None
        start = tensor.data_ptr()
        # A mapping that has just been freed may still be listed here, while its address holds other memory.
        entry = self._buffers.get(start)
        if entry is not None and entry[2]() is not None:
            return entry[1], 0
        for base, (end, buffer, mapping) in list(self._buffers.items()):
            if base <= start < end and mapping() is not None:
                return (buffer, start - base) if (start - base) % tensor.dtype.itemsize == 0 else None
        return None

    def add(self, memfd: Memfd, number: int, nbytes: int, index: int, size: int) -> torch.Tensor:
        """Map a segment of `size` parts, and return this rank's part as a uint8 tensor.

        Raises:
            CommError: There is no memory left.
        """
        stride = memfd.nbytes // size
        own_mapping = memfd.map(index * stride, stride)
        full_mapping = memfd.map()
        if nbytes >= HUGE:
            for mapping in (own_mapping, full_mapping):
                advise(mapping, mmap.MADV_HUGEPAGE)
        # Populate it now, by its own rank: on its NUMA node, and with an error instead of a crash if memory is short.
        advise(own_mapping, POPULATE)
        tensor = tensor_over(own_mapping, 0, nbytes)
        base = tensor.data_ptr()
        buffers = self._buffers

        def forget(mapping: weakref.ref[mmap.mmap]) -> None:
            entry = buffers.get(base)
            if entry is not None and entry[2] is mapping:  # a newer mapping may have the same address
                buffers.pop(base, None)

        buffers[base] = base + nbytes, SharedBuffer(number, full_mapping, stride), weakref.ref(own_mapping, forget)
        return tensor

    def clear(self) -> None:
        """Remove all buffers from the table; the tensors in them stay valid."""
        self._buffers.clear()


def stride_of(nbytes: int) -> int:
    """Return the distance between two ranks' parts: whole pages, or whole huge pages for large buffers."""
    unit = HUGE if nbytes >= HUGE else _PAGE
    return -(-nbytes // unit) * unit


def advise(mapping: mmap.mmap, advice: int) -> None:
    """Call madvise on a mapping. Advice that the kernel doesn't support is ignored.

    Raises:
        CommError: The mapping should be populated, but there is no memory left.
    """
    try:
        mapping.madvise(advice)
    except OSError as error:
        # An older kernel, or one without huge pages, doesn't support the advice. Pages are then allocated on first use.
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise CommError(
                f"{len(mapping):,} bytes of shared memory can't be had ({error.strerror}): ask for less, or raise the "
                "limit of memory of this process"
            ) from error
