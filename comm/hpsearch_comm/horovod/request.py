"""What a rank asks for by a name: all that the others must ask for as well, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hpsearch_comm.errors import CommError

__all__ = ["ReduceOp", "Request"]


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
