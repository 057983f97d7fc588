"""Averages a model's gradients over the ranks of a group, during or at the end of the backward pass.

    backward pass   ── gradients arrive ──────────────────────────────►  end
    bucket 0        [fills][ reduced ...... ]                            wait, set gradients
    bucket 1                [fills ......][ reduced ...... ]             wait, set gradients
    bucket 2                               [fills ......                ][ reduced ]

A hook on each parameter is called when its gradient has arrived. When all gradients of a bucket have arrived and all
earlier buckets have been sent, the bucket's reduction is called. So every rank calls the reductions in the same order.
At the end of the backward pass the remaining reductions are called, and all are waited for: after `loss.backward()`,
`parameter.grad` is the mean over the ranks. Without `overlap`, all reductions are called at the end.

Other hooks of the same parameter may run after ours and change the gradient. So a gradient counts only when the next
gradient arrives on the same device: the device's thread has then run all hooks of the first one.

The mean is over the current `parameter.grad`, including gradients accumulated before. A parameter without a gradient
counts as zero if another rank has one. If no rank has a gradient, it stays None.

Autograd calls a callback at the end of a graph's execution. Two cases need more. With reentrant checkpointing, a node
of the backward pass runs a nested backward pass: at the end of this pass, the callback registers itself with the outer
pass. And if a pass raises an error, the callback isn't called, but deleted: its `__del__` detects this case.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts
from hpsearch_comm.data_parallel.bucket import Bucket
from hpsearch_comm.data_parallel.bucket_plan import Arrivals
from hpsearch_comm.data_parallel.buckets import WIRE_DTYPES, Buckets
from hpsearch_comm.data_parallel.shares import Share, Shares
from hpsearch_comm.errors import CommError, UsageError
from hpsearch_comm.group import Group


class BackwardEnd:
    """A callback for the end of the current backward pass, called once.

    Args:
        finish: Called at the end of the pass. `loss.backward()` raises its errors.
        abandon: Called if the pass has raised an error. On a GPU, this may happen after the next pass has started.
    """

    __slots__ = ("_abandon", "_finish", "_hook")

    def __init__(self, finish: Callable[[], None], abandon: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._abandon = abandon
        self._hook: Any = None
        _call_at_the_end(self)

    def __call__(self) -> None:
        """Finish the pass, or register with the outer pass; autograd calls this at the end of a graph's execution."""
        around = torch._C._current_autograd_node()
        if around is not None:
            # This pass is nested in that node of an outer pass. After the node, callbacks belong to the outer pass.
            self._hook = around.register_hook(self._step_out)
            return
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _step_out(self, *_gradients: Any) -> None:
        self._hook.remove()
        self._hook = None
        _call_at_the_end(self)

    def __del__(self) -> None:
        if self._finish is not None:
            self._abandon()


def _call_at_the_end(callback: BackwardEnd) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


class GradientReducer:
    """Averages gradients over ranks. The core of `DataParallel` and `DistributedOptimizer`.

    The constructor is not a collective; `watch` registers the hooks. Every rank must have the same parameters in the
    same order, and run the same number of synchronized backward passes, each through at least one parameter.

    Args:
        parameters: The parameters and their names. Parameters that require no gradient now mustn't require one later.
        group: The ranks.
        bucket_mb: Size of a bucket of gradients in MiB; the first bucket has at most 1 MiB.
        compression: None, "fp16" or "bf16": the dtype in which float32 and float64 gradients are sent.
        weighted: Whether a weight is announced before each synchronized backward pass.
        passes: Number of backward passes after which gradients are averaged.
        overlap: Whether buckets are reduced during the backward pass; None decides by the expected gain.

    Raises:
        UsageError: An argument is invalid, or a parameter is already averaged.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        group: Group,
        *,
        bucket_mb: float = 25.0,
        compression: str | None = None,
        weighted: bool = False,
        passes: int = 1,
        overlap: bool | None = None,
    ) -> None:
        if compression is not None and compression not in WIRE_DTYPES:
            raise UsageError(f'compression must be None, "fp16" or "bf16", got {compression!r}')
        if not isinstance(bucket_mb, int | float) or not bucket_mb > 0:
            raise UsageError(f"bucket_mb must be a number above 0, got {bucket_mb!r}")
        named = list(parameters)
        self.group = group
        self.shares = Shares(group)
        self._timeline = group.timeline
        self.weighted = weighted
        self.joining = False
        """Whether ranks may run out of batches (`join`). They then announce their presence before each reduction."""
        self.enabled = True
        """Whether backward passes are synchronized. If False, gradients accumulate on each rank."""
        self.following = False
        """Whether a backward pass is running."""
        self.synchronising = False
        """Whether the gradients of the current backward pass are averaged."""
        self.number = 0
        """The number of the backward pass, to detect a gradient that arrives twice in one pass."""
        self._passes = passes
        self._passed = 0
        self._named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        self.buckets = Buckets(
            [parameter for _, parameter in self._named],
            group,
            bucket_bytes=bucket_mb * (1 << 20),
            compression=compression,
            overlap=overlap,
        )
        self._arrivals: Arrivals | None = None
        """The record of a backward pass without buckets; None if there are buckets."""
        self._broken = False
        self.newest: dict[torch.device, Bucket] = {}
        """By device, the bucket of the newest gradient, which doesn't count as arrived yet."""
        self._lock = threading.Lock()  # the backward pass has a thread for each GPU
        self._hooks: list[Any] = []
        for name, parameter in self._named:
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            if any(isinstance(hook, _Arrival) for hook in hooks.values()):
                raise UsageError(
                    f"the gradient of {name} is averaged already by another DataParallel or DistributedOptimizer: "
                    "wrap the model or its optimizer, and each once"
                )

    def watch(self, owner: object) -> None:
        """Register hooks on the parameters; they are removed when the owner is deleted."""
        if self.group.size == 1:
            return  # one rank's gradient is the mean
        for index, (_, parameter) in enumerate(self._named):
            hook = parameter.register_post_accumulate_grad_hook(_Arrival(self, index))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
        # The parameters may outlive the owner; their gradients are then no longer averaged.
        weakref.finalize(owner, self.close).atexit = False

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # Within a backward pass, in its order. -------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Start a backward pass, when its first gradient arrives."""
        with self._lock:
            if self.following:
                return
            synchronise = self.enabled and self._passed + 1 >= self._passes
            self._begin(synchronise)
            BackwardEnd(self._finish_backward, partial(self._abandon_backward, self.number))

    def _begin(self, synchronise: bool) -> None:
        if self._broken:
            raise CommError(
                "the last backward pass raised an error after it had sent some of its gradients, so the ranks are out "
                "of step: make a new group, and wrap the model anew"
            )
        if synchronise and self.weighted and not self.shares.announced:
            raise UsageError(
                "with weighted=True every rank must call set_weight(rows) before each backward pass that averages "
                "gradients: call it with the number of rows that the loss is a mean over"
            )
        if synchronise and self.joining and not self.weighted:
            self.shares.announce(1.0)
        self.number += 1
        self.synchronising = synchronise
        self._expect()
        self.following = True
        self._timeline.begin_backward()

    def note(self, index: int) -> None:
        """Record the arrival of a gradient that has no bucket during the backward pass."""
        if self._arrivals is not None:
            self._arrivals.order.append(index)

    def note_again(self, index: int, bucket: Bucket | None) -> None:
        """Record that a gradient has arrived again in the same backward pass."""
        if self._arrivals is not None:
            self._arrivals.repeated.add(index)
        elif bucket is not None and bucket.sent and self.synchronising:
            raise UsageError(
                f"the gradient of {self._named[index][0]} arrived a second time in one backward pass, after it had "
                "been averaged: use checkpoint(..., use_reentrant=False), or let the first backward pass after "
                "wrapping be one in which this happens"
            )

    def note_complete(self, bucket: Bucket) -> None:
        """Handle a complete bucket: with overlap, send the complete buckets in order; otherwise copy its gradients."""
        with self._lock, torch.no_grad():
            if not self.buckets.overlap:
                bucket.collect()
                return
            while self.buckets.next_is_complete():
                self.buckets.send(self._share())

    def _finish_backward(self) -> None:
        """Send the remaining buckets, wait for all, and set the parameters' gradients."""
        self._timeline.end_backward()
        try:
            self._passed += 1
            if self.synchronising:
                self._check_frozen()
                self._finish(self._share())
        except BaseException:
            self._abort()
            raise
        finally:
            self.following = False

    def _abandon_backward(self, number: int) -> None:
        """Abort a backward pass that raised an error, unless the next pass has started."""
        if number != self.number:
            return
        self._timeline.end_backward()
        self.following = False
        self._abort()

    def _abort(self) -> None:
        if self.synchronising:
            self._broken = self.buckets.has_started
            self.shares.spend()  # the weight doesn't apply to the next pass

    # Outside of a backward pass. -----------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether gradients have been accumulated since the last reduction."""
        return self._passed > 0

    def synchronise(self) -> None:
        """Average the gradients that have been accumulated; a collective."""
        if self.group.size == 1:
            return
        try:
            self._begin(True)
            self._timeline.end_backward()
            self._finish(self._share())
        finally:
            self.following = False

    def forget(self) -> None:
        """Reset the count of backward passes: accumulated gradients have been cleared."""
        self._passed = 0

    def shadow(self) -> None:
        """Contribute zeros to the reduction of the other ranks' backward pass; a collective."""
        self._expect()
        self._finish(self._share())
        for _, parameter in self._named:
            parameter.grad = None

    def coming_share(self) -> float:
        """Return the factor of this rank's gradients in the next reduction."""
        if self.weighted and self.group.size > 1 and not self.shares.announced:
            raise UsageError(
                "with weighted=True and SyncBatchNorm, set_weight(rows) must be called before the first of the "
                "backward passes whose gradients are accumulated"
            )
        return self._share().own

    # Used by both. -------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        self.newest.clear()
        if self.buckets.planned:
            self._arrivals = None
        else:
            self._arrivals = Arrivals()
            self.buckets.forget()
        self.buckets.expect()

    def _finish(self, share: Share) -> None:
        with torch.no_grad():
            if self._arrivals is not None:
                check_agreement(self.group, "the model", describe_layouts(self._named))
                self.buckets.plan(self._arrivals)
            self.buckets.finish(share)
        self.shares.spend()
        self._passed = 0

    def _share(self) -> Share:
        return self.shares.share() if self.weighted or self.joining else self.shares.even

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise UsageError(
                    f"{name} needed no gradient when the model was wrapped, and needs one now, so it would differ "
                    "between ranks: wrap the model after setting requires_grad"
                )


class _Arrival:
    """The hook of one parameter. It is called for each gradient, so it must be fast."""

    __slots__ = ("index", "number", "reducer")

    def __init__(self, reducer: GradientReducer, index: int) -> None:
        self.reducer = reducer
        self.index = index
        self.number = 0

    def __call__(self, _parameter: torch.Tensor) -> None:
        reducer = self.reducer
        if not reducer.following:
            reducer.begin_backward()
        bucket = reducer.buckets.timely.get(self.index)
        if self.number == reducer.number:
            reducer.note_again(self.index, bucket)
            return
        self.number = reducer.number
        if bucket is None:
            reducer.note(self.index)
            return
        before = reducer.newest.get(bucket.device)
        reducer.newest[bucket.device] = bucket
        if before is not None:
            before.missing -= 1
            if not before.missing and reducer.synchronising:
                reducer.note_complete(before)
