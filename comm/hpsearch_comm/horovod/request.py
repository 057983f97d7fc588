"""What a rank asks for by a name: what the others must ask for as well, how that is written down, and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.errors import CommError
from hpsearch_comm.operations.work import Handle


class ReduceOp(IntEnum):
    """How tensors are combined; Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    def __str__(self) -> str:
        """Say it as scripts write it."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Request:
    """One operation, on one tensor or on several that go together."""

    name: str
    """By which the ranks find each other, such as `allreduce.conv1.weight`."""
    kind: str
    """allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join, or what process sets need."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """dtype and shape of each."""
    op: ReduceOp | None = None
    numbers: tuple[int, ...] = ()
    """A broadcast's root, counted in the process set; the ranks of a process set that is added or removed."""
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    device: str = "cpu"
    """cpu or cuda: where the tensors are."""

    def write(self) -> list[Any]:
        """Return it as a list for JSON."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def read(cls, written: Any) -> Request:
        """Read it back.

        Raises:
            CommError: It isn't one.
        """
        try:
            name, kind, tensors, op, numbers, *others = written
            shapes = tuple((dtype, tuple(shape)) for dtype, shape in tensors)
            return cls(name, kind, shapes, None if op is None else ReduceOp(op), tuple(numbers), *others)
        except (TypeError, ValueError) as error:
            raise CommError(
                f"a rank asked for {written!r}, which can't be read ({error}): run one version on every rank"
            ) from None


@dataclass(slots=True, eq=False)
class Entry:
    """An operation on its way: what this rank has been asked for, on which tensors, and who waits for it."""

    request: Request
    sources: Sequence[torch.Tensor] = ()
    """Without history."""
    in_place: Sequence[torch.Tensor] | None = None
    """The caller's tensors, whose memory the sources are, where the results are to go there; None makes new ones."""
    splits: torch.Tensor | None = None
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
