"""An optimizer that reduces gradients, or combines steps, over all ranks.

The reduction of gradients is overlapped with the backward pass. With Adasum each rank steps on its own gradients, and
the ranks' parameter changes are combined.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hpsearch_comm.data_parallel.optimizer import RankOptimizer, check_named, check_passes
from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.errors import MissingError, OrderError
from hpsearch_comm.horovod.job import size
from hpsearch_comm.horovod.objects import broadcast_object
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.reductions import ReductionArguments, reduce_op, sparse_allreduce_async
from hpsearch_comm.horovod.request import ReduceOp


class Bundle:
    """Parameters whose gradients are reduced in one operation: one parameter, or a group of them.

    Args:
        parameters: The parameters.
        name: The name by which the ranks match the operation.
        grouped: Whether the bundle is a group.

    Attributes:
        passes_left: Backward passes that each parameter's gradient still needs.
        finish: Waits for the pending operation and returns the reduced gradients; None before it starts.
        gradients: For each parameter, its gradient and the gradient's version at the start of the reduction.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], name: str, grouped: bool) -> None:
        self.parameters = parameters
        self.name = name
        self.grouped = grouped
        self.passes_left: dict[torch.Tensor, int] = {}
        self.finish: Callable[[], Sequence[torch.Tensor]] | None = None
        self.gradients: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}

    @property
    def active_parameters(self) -> list[torch.Tensor]:
        """The parameters whose gradients are reduced: those that require a gradient or still have one."""
        return [parameter for parameter in self.parameters if parameter.requires_grad or parameter.grad is not None]

    def reset(self, passes: int) -> None:
        """Reset the bundle for the next `passes` backward passes."""
        self.passes_left = dict.fromkeys(self.parameters, passes)
        self.finish, self.gradients = None, {}


_BETWEEN = "must come before loss.backward() or behind optimizer.step()"


class Averaged(RankOptimizer):
    """Reduces gradients over the ranks, then steps on them.

    `DistributedOptimizer` creates a subclass of this class and of the original optimizer's class, which does the steps.

    Attributes:
        backward_passes_per_step: Number of backward passes before a step.
        process_set: The ranks that reduce gradients.
    """

    def _begin(
        self,
        names: dict[torch.Tensor, str],
        reduction: ReductionArguments,
        compression: type[Compressor],
        passes: int,
        sparse_as_dense: bool,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
    ) -> None:
        self.process_set = reduction.process_set
        self.backward_passes_per_step = passes
        self._parameter_names, self._reduction = names, reduction
        self._start = partial(reduction.start_compressed, compression)
        self._sparse_as_dense = sparse_as_dense
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
        for number, bundle in enumerate(bundles, len(self._bundles)):
            bundle.reset(self.backward_passes_per_step)
            for parameter in bundle.parameters:
                # The bundle's number, not the bundle: a parameter whose hook refers to it would never be freed.
                hook = partial(_on_gradient, weakref.ref(self), number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._bundles += bundles

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before a step. Call it between steps.

        Raises:
            OrderError: Some gradients have been computed since the last step. The error is an AssertionError.
        """
        self._check_between_steps(f"set_backward_passes_per_step() {_BETWEEN}")
        check_passes(passes)
        self.backward_passes_per_step = passes
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
                if bundle.finish is None and bundle.active_parameters:
                    self._launch(bundle)
            for bundle in self._bundles:
                if bundle.finish is not None:
                    self._set_gradients(bundle, bundle.finish())
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
        passes = self.backward_passes_per_step
        for bundle in self._bundles:
            if bundle.finish is not None or any(left < passes for left in bundle.passes_left.values()):
                raise OrderError(
                    f"optimizer.{rule}, got it while the gradient of {bundle.name} is on its way: call step() or "
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
        bundle.gradients = {
            parameter: (parameter.grad, parameter.grad._version)
            for parameter in bundle.parameters
            if parameter.grad is not None
        }
        if gradients[0].is_sparse:
            wait = sparse_allreduce_async(gradients[0], bundle.name, self._reduction.op, self.process_set)
            bundle.finish = lambda: [wait().coalesce()]
        else:
            # Not in place: until the backward pass ends, other autograd nodes may read the gradient's memory.
            bundle.finish = self._start(gradients, bundle.name, grouped=bundle.grouped)

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

    def _set_gradients(self, bundle: Bundle, reduced: Sequence[torch.Tensor]) -> None:
        for parameter, (gradient, version) in bundle.gradients.items():
            if parameter.grad is not gradient or gradient._version != version:
                raise OrderError(
                    f"gradients must stay as they are from loss.backward() until they have been reduced, but that of "
                    f"{self._parameter_names[parameter]} has been changed: call optimizer.synchronize() before "
                    "clipping or unscaling them, and step() within `with optimizer.skip_synchronize():`"
                )
        for (parameter, (gradient, _)), result in zip(bundle.gradients.items(), reduced, strict=True):
            stays_sparse = gradient.is_sparse and not result.is_sparse
            parameter.grad = result.to_sparse(gradient.sparse_dim()) if stays_sparse else result


def _on_gradient(reference: weakref.ref[Averaged], number: int, parameter: torch.Tensor) -> None:
    """Report a computed gradient to the optimizer, if the optimizer still exists."""
    optimizer = reference()
    if optimizer is not None:
        optimizer._count_gradient(optimizer._bundles[number], parameter)


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class Combined(Averaged):
    """Steps on this rank's gradients, and combines the steps of all ranks by Adasum (Maleki et al., 2020)."""

    def _reduces(self) -> bool:
        return False

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
        finishes = [
            self._start([parameter.detach() - start], self._parameter_names[parameter])
            for parameter, start in zip(parameters, before, strict=True)
        ]
        for parameter, start, finish in zip(parameters, before, finishes, strict=True):
            parameter.copy_(start.add_(finish()[0]))
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
    if isinstance(optimizer, Averaged):
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
    distributed: Averaged = cls.__new__(cls)
    # Leave out `step`: a learning-rate scheduler may have replaced it on the original optimizer.
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    names = name_parameters(optimizer, named_parameters)
    check_passes(backward_passes_per_step)
    predivide = gradient_predivide_factor
    reduction = ReductionArguments("allreduce", op, 1.0 / predivide, predivide, process_set)
    distributed._begin(names, reduction, compression, backward_passes_per_step, sparse_as_dense, groups)
    return distributed


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the name of each parameter of an optimizer.

    Args:
        optimizer: The optimizer.
        named_parameters: Pairs of name and parameter; None names the parameters by their index.

    Raises:
        UsageError: named_parameters aren't pairs, two of them have the same name, or a parameter has no name.
    """
    stepped = [
        (f"group {number}, parameter {index}", parameter)
        for number, settings in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(settings["params"])
    ]
    named = stepped if named_parameters is None else named_parameters
    named = list(named) if isinstance(named, Iterable) else [named]
    for pair in named:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UsageError(
                f"named_parameters must be pairs of a name and a parameter, got {type(pair).__name__}: pass "
                "model.named_parameters()"
            )
    twice = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if twice:
        raise UsageError(
            f"each name in named_parameters must stand for one parameter, {', '.join(twice)} stand for several: put "
            "another prefix before the names of each model"
        )
    names = {parameter: name for name, parameter in sorted(named, key=lambda pair: pair[0])}
    check_named(optimizer, set(map(id, names)))
    return {parameter: names[parameter] for _, parameter in stepped}


def form_groups(
    names: dict[torch.Tensor, str], groups: int | Sequence[Sequence[torch.Tensor]] | None, process_set: ProcessSet
) -> list[Bundle]:
    """Divide the parameters into bundles; a collective if a number of groups is given.

    Args:
        names: The parameters whose gradients are reduced, with their names.
        groups: None, the number of groups, or the parameters of each group. A parameter in no group is reduced alone.
        process_set: The ranks that reduce them.

    Raises:
        UsageError: groups is something else.
    """
    if groups is None:
        return [Bundle([parameter], name, False) for parameter, name in names.items()]
    if isinstance(groups, list | tuple):
        _check_groups(groups)
        grouped = {parameter for group in groups for parameter in group}
        formed = [[parameter for parameter in group if parameter in names] for group in groups]
        formed += [[parameter] for parameter in names if parameter not in grouped]
    elif type(groups) is int and groups > 0:
        # All ranks must form the same groups, even if the order of their parameters differs.
        order = broadcast_object(list(names.values()), process_set.ranks[0], process_set=process_set)
        indices = {name: index for index, name in enumerate(order)}
        parameters = sorted(names, key=lambda parameter: indices[names[parameter]])
        bounds = [len(parameters) * number // groups for number in range(groups + 1)]
        formed = [parameters[begin:end] for begin, end in itertools.pairwise(bounds)]
    else:
        raise UsageError(f"groups must be a number of groups above 0, or a list of lists of parameters, got {groups!r}")
    return [Bundle(group, names[group[0]], True) for group in formed if group]


def _check_groups(groups: Sequence[Sequence[torch.Tensor]]) -> None:
    assigned: set[torch.Tensor] = set()
    for number, group in enumerate(groups):
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise UsageError(f"groups must be lists of parameters, got {type(parameter).__name__} in list {number}")
            if parameter in assigned:
                raise UsageError(
                    f"a parameter can be in one group, but one of shape {list(parameter.shape)} in list {number} is "
                    "in another one too"
                )
            assigned.add(parameter)
