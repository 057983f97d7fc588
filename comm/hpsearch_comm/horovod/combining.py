"""An optimizer that steps on this rank's gradients, and combines what the ranks' steps change, by Adasum."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hpsearch_comm.horovod.distributed import Distributed
from hpsearch_comm.horovod.errors import MissingError, OrderError
from hpsearch_comm.horovod.handles import synchronize
from hpsearch_comm.horovod.process_sets import global_process_set
from hpsearch_comm.horovod.reductions import allreduce_async

__all__ = ["Combined"]


class Combined(Distributed):
    """Steps on this rank's gradients, and combines the steps of all ranks by Adasum (Maleki et al., 2021)."""

    def _begin(self, groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
        if self.process_set is not global_process_set:
            raise MissingError(f"op=hvd.Adasum combines the steps of all ranks, got {self.process_set}")

    def synchronize(self) -> None:
        """Do nothing: gradients stay this rank's own."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refuse: a step is always combined with those of the other ranks.

        Raises:
            OrderError: Always; it is an AssertionError.
        """
        raise OrderError("skip_synchronize() doesn't go with op=hvd.Adasum: a step always is that of all ranks")
        yield

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step, and let the step be that of all ranks.

        Args:
            closure: Evaluates the model anew.
        """
        parameters = [parameter for parameter in self._steps() if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        handles = []
        for parameter, start in zip(parameters, before, strict=True):
            delta, context = self._compression.compress(parameter.detach() - start)
            handle = allreduce_async(delta, name=self._parameter_names[parameter], op=self._op)
            handles.append((handle, context))
        for parameter, start, (handle, context) in zip(parameters, before, handles, strict=True):
            parameter.copy_(start.add_(self._compression.decompress(synchronize(handle), context)))
        return loss

    step.hooked = True  # type: ignore[attr-defined]
