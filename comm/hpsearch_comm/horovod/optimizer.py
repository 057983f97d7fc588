"""An optimizer that reduces gradients, or combines steps, over all ranks.

The reduction of gradients is overlapped with the backward pass. With Adasum each rank steps on its own gradients, and
the ranks' parameter changes are combined.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hpsearch_comm.data_parallel.optimizer import RankOptimizer, check_passes
from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.bundles import Bundle, form_groups, name_parameters
from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.errors import MissingError, OrderError
from hpsearch_comm.horovod.handles import synchronize
from hpsearch_comm.horovod.job import size
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.reductions import ReductionArguments, allreduce_async, reduce_op, sparse_allreduce_async
from hpsearch_comm.horovod.request import ReduceOp


class Distributed(RankOptimizer):
    """Base class of both kinds of distributed optimizers.

    `DistributedOptimizer` creates a subclass of this class and of the original optimizer's class, which does the steps.

    Attributes:
        backward_passes_per_step: Number of backward passes before a step.
        process_set: The ranks that reduce gradients.
    """

    backward_passes_per_step: int
    process_set: ProcessSet
    _compression: type[Compressor]
    _op: ReduceOp
    _predivide: float
    _sparse_as_dense: bool
    _parameter_names: dict[torch.Tensor, str]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before a step. Call it between steps."""
        check_passes(passes)
        self.backward_passes_per_step = passes


_BETWEEN = "must come before loss.backward() or behind optimizer.step()"


class Averaged(Distributed):
    """Reduces gradients over the ranks, then steps on them."""

    def _begin(self, groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
        self._synchronized = False
        self._should_synchronize = True
        self._sparse_dims: dict[torch.Tensor, int] = {}
        self._bundles: list[Bundle] = []
        self._hooks: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks)
        if self._reduces():
            self._watch(form_groups(self._unwatched(), groups, self.process_set))

    def _reduces(self) -> bool:
        return size() > 1 and self.process_set.included()

    def _unwatched(self) -> dict[torch.Tensor, str]:
        """Return the parameters that require gradients and are in no bundle, with their names."""
        watched = {parameter for bundle in self._bundles for parameter in bundle.parameters}
        named = self._parameter_names.items()
        return {tensor: name for tensor, name in named if tensor.requires_grad and tensor not in watched}

    def _watch(self, bundles: Sequence[Bundle]) -> None:
        for bundle in bundles:
            bundle.reset(self.backward_passes_per_step)
            self._hooks += [
                parameter.register_post_accumulate_grad_hook(partial(_on_gradient, weakref.ref(self), bundle))  # type: ignore[no-untyped-call]
                for parameter in bundle.parameters
            ]
        self._bundles += bundles

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before a step. Call it between steps.

        Raises:
            OrderError: Some gradients have been computed since the last step. The error is an AssertionError.
        """
        self._check_between_steps(f"set_backward_passes_per_step() {_BETWEEN}")
        super().set_backward_passes_per_step(passes)
        self._reset()

    def synchronize(self) -> None:
        """Wait until every gradient has been reduced over the ranks.

        Raises:
            HorovodInternalError: A gradient couldn't be reduced.
            OrderError: A gradient was changed after it was computed. The error is an AssertionError.
        """
        try:
            if self._reduces():  # parameters that were frozen so far, too
                self._watch(form_groups(self._unwatched(), None, self.process_set))
            for bundle in self._bundles:
                if bundle.handle is None and bundle.active_parameters:
                    self._launch(bundle)
            for bundle in self._bundles:
                if bundle.handle is not None:
                    self._finish(bundle)
        finally:
            self._reset()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step()` inside this context use the gradients as they are, for example after clipping them."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the reduced gradients.

        Args:
            closure: A function that evaluates the model again; its gradients are reduced after each call.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
                    "gradients are reduced a second time. Call step() within `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            if closure is None:
                self.synchronize()
            else:
                closure = self._reducing(closure)
        self._synchronized = False
        return super().step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch's hooks run in the step of the base class

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients.

        Raises:
            OrderError: Some gradients are being reduced. The error is an AssertionError.
        """
        self._check_between_steps(f"zero_grad() {_BETWEEN}")
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state on this rank; `broadcast_optimizer_state` copies it to other ranks."""
        self._reset()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(state_dict)

    def _reset(self) -> None:
        for bundle in self._bundles:
            bundle.reset(self.backward_passes_per_step)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return False: torch.amp.GradScaler must unscale the gradients itself, after they have been reduced.

        Raises:
            OrderError: The gradients haven't been reduced.
        """
        self._check_between_steps("synchronize() must come before GradScaler.step()")
        return False

    def _check_between_steps(self, rule: str) -> None:
        started = [bundle.name for bundle in self._bundles if bundle.has_started(self.backward_passes_per_step)]
        if started:
            raise OrderError(
                f"optimizer.{rule}, got it while the gradient of {started[0]} is on its way: call step() or "
                "synchronize() first"
            )

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return evaluate

    def _count_gradient(self, bundle: Bundle, parameter: torch.Tensor) -> None:
        """Record that a gradient is ready; reduce the gradients of the bundle when all are."""
        if bundle.passes_left[parameter] == 0:
            raise OrderError(
                f"step() must follow {self.backward_passes_per_step} backward passes, but the gradient of "
                f"{self._parameter_names[parameter]} was computed once more before it: pass a larger "
                "backward_passes_per_step to add up gradients of several passes"
            )
        bundle.passes_left[parameter] -= 1
        if not any(bundle.passes_left.values()):
            self._launch(bundle)

    def _launch(self, bundle: Bundle) -> None:
        gradients = [self._gradient(parameter, bundle) for parameter in bundle.active_parameters]
        bundle.remember_gradients()
        if gradients[0].is_sparse:
            bundle.handle = sparse_allreduce_async(gradients[0], bundle.name, self._op, self.process_set)
            return
        compressed = [self._compression.compress(gradient) for gradient in gradients]
        bundle.contexts = [context for _, context in compressed]
        # Not in place: until the backward pass ends, other autograd nodes may read the gradient's memory.
        reduction = ReductionArguments("allreduce", self._op, 1.0 / self._predivide, self._predivide, self.process_set)
        bundle.handle = reduction.start([tensor for tensor, _ in compressed], bundle.name, grouped=bundle.grouped)

    def _gradient(self, parameter: torch.Tensor, bundle: Bundle) -> torch.Tensor:
        """Return the gradient to reduce; zeros if this rank has computed none."""
        gradient = parameter.grad
        if gradient is None:
            # Sparse if the gradient was sparse before: other ranks send sparse gradients.
            gradient = torch.zeros_like(parameter, requires_grad=False)
            if parameter in self._sparse_dims:
                gradient = gradient.to_sparse(self._sparse_dims[parameter])
            parameter.grad = gradient
        if not gradient.is_sparse:
            return gradient.detach()
        self._sparse_dims[parameter] = gradient.sparse_dim()
        if self._sparse_as_dense:
            return gradient.to_dense()
        if bundle.grouped:
            raise UsageError(
                f"a sparse gradient can't be reduced in a group, as that of {self._parameter_names[parameter]}: pass "
                "sparse_as_dense=True, or no groups"
            )
        return gradient

    def _finish(self, bundle: Bundle) -> None:
        results = bundle.handle().coalesce() if callable(bundle.handle) else synchronize(bundle.handle)
        changed = bundle.changed()
        if changed is not None:
            raise OrderError(
                f"gradients must stay as they are from loss.backward() until they have been reduced, but that of "
                f"{self._parameter_names[changed]} has been changed: call optimizer.synchronize() before clipping or "
                "unscaling them, and step() within `with optimizer.skip_synchronize():`"
            )
        if callable(bundle.handle):
            bundle.parameters[0].grad = results
            return
        for parameter, result, context in zip(
            bundle.gradients, results if bundle.grouped else [results], bundle.contexts, strict=True
        ):
            reduced = self._compression.decompress(result, context)
            assert parameter.grad is not None
            parameter.grad = reduced.to_sparse(parameter.grad.sparse_dim()) if parameter.grad.is_sparse else reduced


def _on_gradient(reference: weakref.ref[Averaged], bundle: Bundle, parameter: torch.Tensor) -> None:
    """Report a computed gradient to the optimizer, if the optimizer still exists."""
    optimizer = reference()
    if optimizer is not None:
        optimizer._count_gradient(bundle, parameter)


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class Combined(Distributed):
    """Steps on this rank's gradients, and combines the steps of all ranks by Adasum (Maleki et al., 2020)."""

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise an error: a step is always combined with the steps of the other ranks.

        Raises:
            OrderError: Always. The error is an AssertionError.
        """
        raise OrderError("skip_synchronize() doesn't go with op=hvd.Adasum: a step always is that of all ranks")
        yield

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on this rank's gradients, then combine the steps of all ranks.

        Args:
            closure: A function that evaluates the model again.
        """
        parameters = [parameter for parameter in self._parameter_names if parameter.requires_grad]
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

    A gradient is reduced as soon as it is computed, during `loss.backward()`; `step()` waits for all reductions. A
    gradient that this rank didn't compute counts as zero. Don't use the original optimizer afterwards.

    With op=Adasum each rank steps on its own gradients. The change of each parameter is then combined over the ranks.

    Args:
        optimizer: The optimizer whose groups and state are used.
        named_parameters: `model.named_parameters()`: the names by which the ranks match gradients. They must be the
            same on all ranks. None names the parameters by their index in the optimizer.
        compression: How gradients are compressed.
        backward_passes_per_step: Backward passes whose gradients are summed before they are reduced.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: With op=Average, gradients are divided by this factor before the sum, and by
            size / factor after it. This avoids an overflow of the sum.
        num_groups: Deprecated; use groups.
        groups: A number of groups, or a list of lists of parameters: gradients of a group are reduced together.
        sparse_as_dense: Whether sparse gradients are reduced as dense ones.
        process_set: The ranks that reduce gradients. Other ranks step on their own gradients.

    Raises:
        UsageError: An argument is invalid, or a parameter's name is missing or used twice. The error is a ValueError.
        MissingError: op is Adasum and process_set is not the set of all ranks.
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
    if kind is Combined and process_set is not global_process_set:
        raise MissingError(f"op=hvd.Adasum combines the steps of all ranks, got {process_set}")
    cls: Any = type(
        type(optimizer).__name__, (kind, type(optimizer)), {"__module__": __name__, "__doc__": kind.__doc__}
    )
    distributed: Distributed = cls.__new__(cls)
    # Leave out `step`: a learning-rate scheduler may have replaced it on the original optimizer.
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    distributed._compression = compression
    distributed._op = op
    distributed._predivide = gradient_predivide_factor
    distributed._sparse_as_dense = sparse_as_dense
    distributed.process_set = process_set
    distributed._parameter_names = name_parameters(optimizer, named_parameters)
    check_passes(backward_passes_per_step)
    distributed.backward_passes_per_step = backward_passes_per_step
    if isinstance(distributed, Averaged):
        distributed._begin(groups)
    return distributed
