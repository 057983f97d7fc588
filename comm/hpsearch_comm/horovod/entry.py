"""An operation on its way: what was asked for, on which tensors, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

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
    handle: Handle[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.handle = Handle(self.request.name)

    def finish(self, results: Sequence[torch.Tensor]) -> None:
        """Give the results to whoever waits; of an operation in place, the caller's own tensors."""
        results = results if self.in_place is None else self.in_place
        self.handle.finish(tuple(results) if self.grouped else results[0])
