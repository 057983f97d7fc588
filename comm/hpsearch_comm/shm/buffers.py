"""Buffers whose memory every rank of the host can reach, so that reducing them needs no copy in or out."""

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
"""Bytes of a huge page."""
POPULATE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it."""


class SharedBuffer:
    """One buffer of each local rank, all in one segment. Found by `BufferTable.find`; never made by hand.

    A rank maps the segment twice: its own part under the tensors that the user holds, and the whole for collectives.
    So the user's tensors alone decide how long the buffer lives: when the last one goes, so does the rest.

    Attributes:
        number: The same on every rank: buffers are made by all in the same order.
    """

    def __init__(self, number: int, mapping: mmap.mmap, stride: int) -> None:
        self.number = number
        self._stride = stride
        self._tensor = views_of(tensor_over(mapping, 0, len(mapping)))

    def part(self, member: int, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return `numel` elements of a member's part, from a byte offset on."""
        return self._tensor(member * self._stride + offset, dtype, numel)


class BufferTable:
    """The shared buffers of this rank whose tensors are in use."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[int, SharedBuffer, weakref.ref[mmap.mmap]]] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def find(self, tensor: torch.Tensor) -> tuple[SharedBuffer, int] | None:
        """Say in which buffer a contiguous tensor lies, and at which byte; None for other memory.

        None also where its elements begin between the places at which torch can view the buffer in their dtype.
        """
        if not self._buffers:
            return None
        start = tensor.data_ptr()
        # A mapping that is being given back may stand here for a moment more, while other memory lies in its place.
        entry = self._buffers.get(start)
        if entry is not None and entry[2]() is not None:
            return entry[1], 0
        for base, (end, buffer, mapping) in list(self._buffers.items()):
            if base <= start < end and mapping() is not None:
                return (buffer, start - base) if (start - base) % tensor.dtype.itemsize == 0 else None
        return None

    def add(self, memfd: Memfd, number: int, nbytes: int, index: int, size: int) -> torch.Tensor:
        """Map a segment of `size` parts, and return this rank's own as a uint8 tensor.

        Raises:
            CommError: There is no memory left.
        """
        stride = memfd.nbytes // size
        own_mapping = memfd.map(index * stride, stride)
        full_mapping = memfd.map()
        if nbytes >= HUGE:
            for mapping in (own_mapping, full_mapping):
                advise(mapping, mmap.MADV_HUGEPAGE)
        # Touched now by its own rank: on its node of the machine, and where memory is short an error, not a crash.
        advise(own_mapping, POPULATE)
        tensor = tensor_over(own_mapping, 0, nbytes)
        base = tensor.data_ptr()
        buffers = self._buffers

        def forget(mapping: weakref.ref[mmap.mmap]) -> None:
            entry = buffers.get(base)
            if entry is not None and entry[2] is mapping:  # a newer one may lie there already
                buffers.pop(base, None)

        buffers[base] = base + nbytes, SharedBuffer(number, full_mapping, stride), weakref.ref(own_mapping, forget)
        return tensor

    def clear(self) -> None:
        """Forget all buffers; tensors over them stay as they are."""
        self._buffers.clear()


def stride_of(nbytes: int) -> int:
    """Return the distance between two ranks' parts: whole pages, huge ones where they pay."""
    unit = HUGE if nbytes >= HUGE else _PAGE
    return -(-nbytes // unit) * unit


def advise(mapping: mmap.mmap, advice: int) -> None:
    """Tell the kernel how a mapping is used, as far as it knows what that means.

    Raises:
        CommError: It should be populated, and there is no memory left.
    """
    try:
        mapping.madvise(advice)
    except OSError as error:
        # An older kernel, or one without huge pages, says that it doesn't know; pages come when they are touched then.
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise CommError(
                f"{len(mapping):,} bytes of shared memory can't be had ({error.strerror}): ask for less, or raise the "
                "limit of memory of this process"
            ) from error
