"""An optimizer whose gradients, or steps, are those of all ranks.

With Adasum it steps on this rank's gradients, and combines what the ranks' steps change.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.averaging import Averaged
from hpsearch_comm.horovod.bundles import name_parameters
from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.distributed import Distributed
from hpsearch_comm.horovod.errors import MissingError, OrderError
from hpsearch_comm.horovod.handles import synchronize
from hpsearch_comm.horovod.job import size
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.reductions import allreduce_async, reduce_op
from hpsearch_comm.horovod.request import ReduceOp

__all__ = ["DistributedOptimizer"]


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


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class, with the same groups and state, that steps on the gradients of all ranks.

    A gradient is reduced as soon as it is computed, during `loss.backward()`; `step()` waits for all. A gradient that
    this rank didn't compute counts as zero. Don't use the original optimizer afterwards.

    With op=Adasum each rank steps on its own gradients, and the resulting differences are combined for each parameter.

    Args:
        optimizer: Its groups and state are used.
        named_parameters: `model.named_parameters()`: the names by which the ranks match gradients. They must be the
            same on all ranks. None names the parameters by their index in the optimizer.
        compression: How gradients are compressed.
        backward_passes_per_step: Backward passes whose gradients are summed before they are reduced.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: With op=Average, gradients are divided by it before the sum, and by the number of
            ranks over it afterwards, in case sums are too large for their dtype.
        num_groups: Deprecated: groups.
        groups: A number of groups, or a list of lists of parameters: gradients of a group are reduced together.
        sparse_as_dense: Whether sparse gradients are reduced as dense ones.
        process_set: The ranks that reduce gradients. Others step on their own.

    Raises:
        UsageError: An argument can't be used, or a parameter's name is missing or used twice; it is a ValueError.
        MissingError: Adasum with a process set of some ranks.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"hvd.DistributedOptimizer takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, Distributed):
        raise UsageError("the optimizer must not be a DistributedOptimizer already: its gradients are reduced once")
    op = reduce_op(op, None)
    check_compression(compression)
    if gradient_predivide_factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise UsageError(f"gradient_predivide_factor goes with op=hvd.Average alone, got op={op}")
    if num_groups:
        warnings.warn("num_groups is deprecated in favour of groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    kind = Combined if op is ReduceOp.ADASUM and size() > 1 else Averaged
    cls: Any = type(
        type(optimizer).__name__, (kind, type(optimizer)), {"__module__": __name__, "__doc__": kind.__doc__}
    )
    distributed: Distributed = cls.__new__(cls)
    # But for a scheduler's own step, that the given one may have.
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    distributed._compression = compression
    distributed._op = op
    distributed._predivide = gradient_predivide_factor
    distributed._sparse_as_dense = sparse_as_dense
    distributed.process_set = process_set
    distributed._parameter_names = name_parameters(optimizer, named_parameters)
    distributed._check_passes(backward_passes_per_step)
    distributed.backward_passes_per_step = backward_passes_per_step
    distributed._begin(groups)
    return distributed
