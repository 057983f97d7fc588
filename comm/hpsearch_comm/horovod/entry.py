"""An operation on its way: what was asked for, on which tensors, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.horovod.request import Request
from hpsearch_comm.operations.work import Handle

__all__ = ["Entry"]


@dataclass(slots=True, eq=False)
class Entry:
    """What this rank has been asked for."""

    request: Request
    sources: Sequence[torch.Tensor] = ()
    """Without history."""
    in_place: Sequence[torch.Tensor] | None = None
    """The caller's tensors, whose memory the sources are, where the results are to go there; None makes new ones."""
    splits: list[int] | None = None
    """Of an alltoall: rows for each rank."""
    grouped: bool = False
    """Whether the result is a list of tensors rather than one."""
    ready: Event | None = None
    """Of CUDA tensors: the point that the caller's stream had come to at the call."""
    handle: Handle[Any] = field(init=False)
    _stream: CudaStream | None = field(default=None, init=False)
    _finished: Event | None = field(default=None, init=False)
    _results: Sequence[torch.Tensor] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.handle = Handle(self.request.name)

    def begin(self, stream: CudaStream | None) -> None:
        """Make the stream of the operation wait for the tensors; None for the CPU."""
        self._stream = stream
        if stream is not None:
            if self.ready is not None:
                stream.follow(self.ready)
            for source in self.sources:
                stream.keep(source)

    def finish(self, results: Sequence[torch.Tensor], value: Any = None) -> None:
        """Finish the handle with the results; of an operation in place, the caller's own tensors.

        Args:
            results: Tensors.
            value: What the caller gets in place of them.
        """
        results = self._results = results if self.in_place is None else self.in_place
        if self._stream is not None:
            self._finished = self._stream.record()
        self.handle.finish(value or (tuple(results) if self.grouped else results[0]))

    def lend(self, stream: CudaStream | None) -> None:
        """Make a stream wait for the results, on the GPU, and use them."""
        if stream is not None and self._finished is not None:
            stream.follow(self._finished)
            for result in self._results:
                stream.keep(result)
