"""Following the backward passes of a model, and averaging its gradients over the ranks of a group.

    backward pass   ── gradients arrive ──────────────────────────────►  end
    bucket 0        [fills][ reduced ...... ]                            wait, hand over
    bucket 1                [fills ......][ reduced ...... ]             wait, hand over
    bucket 2                               [fills ......                ][ reduced ]

A hook on each parameter tells when its gradient has arrived. When the last one of a bucket has, and all buckets before
it have been sent, its reduction is called, so that every rank calls them in the same order. What is left is called when
the backward pass ends, and all are waited for: after `loss.backward()`, `parameter.grad` is the mean over the ranks.
Where that hides nothing (`overlap`), all of it happens at the end.

Other hooks of the same parameter may run behind ours, and change the gradient. So it counts when the next one arrives
on its device, whose thread is through with all of them then.

What is averaged is whatever lies in `parameter.grad`: gradients accumulated before are part of it. A parameter without
a gradient counts as zero if another rank has one for it; where no rank has, it stays None.

Autograd calls back at the end of a graph's execution. Two cases are not that simple. With reentrant checkpointing a
node of the backward pass runs a whole backward pass of its own, whose end is not the end: the callback passes itself on
to the pass outside. And a pass that raises calls nobody: but it drops the callback, which notices.
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
    """Tells, once, of the end of the backward pass that runs where this is made.

    Args:
        finish: Called when the pass has come to its end; what this raises comes out of `loss.backward()`.
        abandon: Called when it has raised. On a GPU, a pass that raised may be taken apart when the next has begun.
    """

    __slots__ = ("_abandon", "_finish", "_hook")

    def __init__(self, finish: Callable[[], None], abandon: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._abandon = abandon
        self._hook: Any = None
        _call_at_the_end(self)

    def __call__(self) -> None:
        """Called by autograd at the end of a graph's execution."""
        around = torch._C._current_autograd_node()
        if around is not None:
            # A backward pass within that node of another one. After the node, callbacks go to the outer pass.
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

    Making it does nothing collective; backward passes are followed from `watch` on. Every rank must have the same
    parameters in the same order and run the same number of synchronised backward passes, each of which reaches at least
    one of them.

    Args:
        parameters: With their names. Those that need no gradient now mustn't need one later.
        group: The ranks.
        bucket_mb: MiB of gradients that are reduced at once; the first bucket takes 1 MiB at most.
        compression: None, "fp16" or "bf16": what float32 and float64 gradients travel in.
        weighted: Whether a weight is announced before each synchronised backward pass.
        passes: Every how many backward passes gradients are averaged.
        overlap: Whether buckets are reduced while the backward pass still runs; None where it pays.

    Raises:
        UsageError: An argument doesn't fit, or a parameter is averaged already.
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
        """Whether ranks may have run out of batches: then they tell each other before each reduction."""
        self.enabled = True
        """Whether backward passes are synchronised. False lets gradients accumulate on each rank."""
        self.following = False
        """Whether a backward pass is under way."""
        self.synchronising = False
        """Whether its gradients are averaged."""
        self.number = 0
        """Of the backward pass, so that a parameter's second arrival within one is known."""
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
        """What is seen of a backward pass for which there are no buckets yet."""
        self._broken = False
        self.newest: dict[torch.device, Bucket] = {}
        """By device, the bucket of the gradient that has arrived, but doesn't count yet."""
        self._lock = threading.Lock()  # a model on several GPUs has a thread for each of them in its backward pass
        self._hooks: list[Any] = []
        for name, parameter in self._named:
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            if any(isinstance(hook, _Arrival) for hook in hooks.values()):
                raise UsageError(
                    f"the gradient of {name} is averaged already by another DataParallel or DistributedOptimizer: "
                    "wrap the model or its optimizer, and each once"
                )

    def watch(self, owner: object) -> None:
        """Follow the parameters' backward passes from now on, for as long as the owner lives."""
        if self.group.size == 1:
            return  # the mean over one rank is there already
        for index, (_, parameter) in enumerate(self._named):
            hook = parameter.register_post_accumulate_grad_hook(_Arrival(self, index))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
        # The parameters may outlive the owner; then they are ordinary ones again.
        weakref.finalize(owner, self.close).atexit = False

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # Within a backward pass, in its order. -------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Follow the backward pass that has just brought its first gradient."""
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
        """Note that a gradient has arrived for which there is no bucket to wait in."""
        if self._arrivals is not None:
            self._arrivals.order.append(index)

    def note_again(self, index: int, bucket: Bucket | None) -> None:
        """Note that a gradient has arrived once more in the same backward pass."""
        if self._arrivals is not None:
            self._arrivals.repeated.add(index)
        elif bucket is not None and bucket.sent and self.synchronising:
            raise UsageError(
                f"the gradient of {self._named[index][0]} arrived a second time in one backward pass, after it had "
                "been averaged: use checkpoint(..., use_reentrant=False), or let the first backward pass after "
                "wrapping be one in which this happens"
            )

    def note_complete(self, bucket: Bucket) -> None:
        """Send the buckets that are complete, up to the first that isn't, or get ready to."""
        with self._lock, torch.no_grad():
            if not self.buckets.overlap:
                bucket.collect()
                return
            while self.buckets.next_is_complete():
                self.buckets.send(self._share())

    def _finish_backward(self) -> None:
        """Send what is left, wait for everything, and hand the gradients over."""
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
        """Forget a backward pass that raised, unless the next one has begun."""
        if number != self.number:
            return
        self._timeline.end_backward()
        self.following = False
        self._abort()

    def _abort(self) -> None:
        if self.synchronising:
            self._broken = self.buckets.has_started
            self.shares.spend()  # the next one has a weight of its own

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
        """Count backward passes afresh: what they accumulated has been thrown away."""
        self._passed = 0

    def shadow(self) -> None:
        """Do what the other ranks' backward pass makes them do together, with nothing to add; a collective."""
        self._expect()
        self._finish(self._share())
        for _, parameter in self._named:
            parameter.grad = None

    def coming_share(self) -> float:
        """Return what this rank's gradients will be multiplied by before they are averaged."""
        if self.weighted and self.group.size > 1 and not self.shares.announced:
            raise UsageError(
                "with weighted=True and SyncBatchNorm, set_weight(rows) must be called before the first of the "
                "backward passes whose gradients are accumulated"
            )
        return self._share().own

    # Steps of both. ------------------------------------------------------------------------------------------------

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
    """The hook of one parameter; called for each gradient, so it does little."""

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
