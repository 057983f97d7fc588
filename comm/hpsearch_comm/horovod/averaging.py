"""An optimizer that steps on gradients of all ranks, which are reduced while the backward pass goes on."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.bundles import Bundle, form_groups
from hpsearch_comm.horovod.distributed import Distributed
from hpsearch_comm.horovod.errors import OrderError
from hpsearch_comm.horovod.handles import synchronize
from hpsearch_comm.horovod.job import size
from hpsearch_comm.horovod.reductions import allreduce_async, grouped_allreduce_async, sparse_allreduce_async

__all__ = ["Averaged"]

_BETWEEN = "must come before loss.backward() or behind optimizer.step()"


class Averaged(Distributed):
    """Steps on gradients that have been reduced over the ranks."""

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
        """Return parameters, with their names, that need gradients and are in no bundle."""
        watched = {parameter for bundle in self._bundles for parameter in bundle.parameters}
        named = self._parameter_names.items()
        return {tensor: name for tensor, name in named if tensor.requires_grad and tensor not in watched}

    def _watch(self, bundles: Sequence[Bundle]) -> None:
        for bundle in bundles:
            bundle.reset(self.backward_passes_per_step)
            self._hooks += [
                parameter.register_post_accumulate_grad_hook(_GradientHook(self, bundle))  # type: ignore[no-untyped-call]
                for parameter in bundle.parameters
            ]
        self._bundles += bundles

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before a step; between two steps."""
        self._check_between_steps(f"set_backward_passes_per_step() {_BETWEEN}")
        super().set_backward_passes_per_step(passes)
        self._reset()

    def synchronize(self) -> None:
        """Wait until every gradient is that of all ranks.

        Raises:
            HorovodInternalError: One couldn't be reduced.
            OrderError: One has been changed since it was computed; it is an AssertionError.
        """
        try:
            if self._reduces():  # what has been frozen before, too
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
        """Make `step()` inside use the gradients as they are, as after `synchronize()` and clipping."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the gradients of all ranks.

        Args:
            closure: Evaluates the model anew; its gradients are reduced each time.
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

    step.hooked = True  # type: ignore[attr-defined]  # torch's hooks run in the step of the class behind this one

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients.

        Raises:
            OrderError: Some are being reduced; it is an AssertionError.
        """
        self._check_between_steps(f"zero_grad() {_BETWEEN}")
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state on this rank; `broadcast_optimizer_state` brings it to the others."""
        self._reset()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(state_dict)

    def _reset(self) -> None:
        for bundle in self._bundles:
            bundle.reset(self.backward_passes_per_step)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Answer torch.amp.GradScaler, which is about to divide gradients by its factor: they must be reduced by then.

        Raises:
            OrderError: They aren't.
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

    def _on_gradient(self, bundle: Bundle, parameter: torch.Tensor) -> None:
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
        # Not in place: until the backward pass ends, other nodes may read what autograd has made a gradient of.
        tensors = [tensor for tensor, _ in compressed]
        options = {
            "name": bundle.name,
            "op": self._op,
            "prescale_factor": 1.0 / self._predivide,
            "postscale_factor": self._predivide,
            "process_set": self.process_set,
        }
        if bundle.grouped:
            bundle.handle = grouped_allreduce_async(tensors, **options)  # type: ignore[arg-type]
        else:
            bundle.handle = allreduce_async(tensors[0], **options)  # type: ignore[arg-type]

    def _gradient(self, parameter: torch.Tensor, bundle: Bundle) -> torch.Tensor:
        """Return a gradient as it is reduced: zeros where this rank has computed none."""
        gradient = parameter.grad
        if gradient is None:
            # Sparse, if it has ever been: other ranks send theirs so.
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
            bundle.reduced_parameters, results if bundle.grouped else [results], bundle.contexts, strict=True
        ):
            reduced = self._compression.decompress(result, context)
            assert parameter.grad is not None
            parameter.grad = reduced.to_sparse(parameter.grad.sparse_dim()) if parameter.grad.is_sparse else reduced


class _GradientHook:
    """Tells an optimizer that a gradient has been computed, as long as there is one."""

    def __init__(self, optimizer: Averaged, bundle: Bundle) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._bundle = bundle

    def __call__(self, parameter: torch.Tensor) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._on_gradient(self._bundle, parameter)


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
