"""Pending operations by handle; barrier and join, which block and return no handle."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch

from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.errors import CommTimeoutError
from hpsearch_comm.horovod.controller import Controller
from hpsearch_comm.horovod.job import current_job
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.request import Entry, ReduceOp, Request
from hpsearch_comm.operations.arguments import check_target, check_tensor
from hpsearch_comm.operations.work import Handle

__all__ = ["barrier", "join", "poll", "synchronize"]

_log = logging.getLogger(__name__)
_numbers = itertools.count()
_P = ParamSpec("_P")
_pending: dict[int, tuple[Entry, Controller]] = {}


def start(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    grouped: bool = False,
    op: ReduceOp | None = None,
    root_rank: int | None = None,
    splits: Callable[[int], torch.Tensor] | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start an operation of this kind; return its handle.

    Args:
        kind: See `Request`.
        tensors: The tensors.
        name: The name that the user gave, or None.
        process_set: The ranks.
        in_place: Whether the results go into the tensors.
        grouped: Whether the result is a tuple of tensors rather than one.
        op: The operator of a reduction.
        root_rank: The root of a broadcast, as its rank in the job.
        splits: For an alltoall, a function that takes the number of ranks and returns the number of rows for each.
        prescale_factor: The factor before a reduction.
        postscale_factor: The factor after a reduction.

    Raises:
        ValueError: An argument can't be used. Nothing has been announced.
        HorovodInternalError: There is no job, or it has ended.
    """
    controller = current_job().controller(process_set.process_set_id)
    # Take a number even if a check below fails: otherwise other ranks would match the next call with this one.
    full_name = controller.name(f"grouped_{kind}" if grouped else kind, name)
    sources = [_check(kind, tensor, in_place) for tensor in tensors]
    stream = _stream_of(kind, controller, sources)
    addresses = [source.data_ptr() for source in sources if source.numel()]
    if in_place and len(set(addresses)) < len(addresses):
        raise ValueError(f"hvd.grouped_{kind}_ takes each tensor once, as its result goes there, got one twice")
    request = Request(
        full_name,
        kind,
        tuple((str(source.dtype).removeprefix("torch."), tuple(source.shape)) for source in sources),
        op,
        () if root_rank is None else (_root(root_rank, controller.ranks),),
        float(prescale_factor),
        float(postscale_factor),
        "cpu" if stream is None else "cuda",
    )
    rows = None if splits is None else splits(len(controller.ranks))
    ready = None if stream is None else stream.record()
    entry = Entry(request, sources, tensors if in_place else None, rows, grouped, ready)
    controller.submit(entry)
    handle = next(_numbers)
    _pending[handle] = entry, controller
    return handle


def _check(kind: str, tensor: torch.Tensor, in_place: bool) -> torch.Tensor:
    """Return the tensor detached from the autograd graph, after checking it."""
    source = check_tensor(f"hvd.{kind}", tensor)
    return check_target(f"hvd.{kind}_'s tensor", source) if in_place else source


def _stream_of(kind: str, controller: Controller, sources: Sequence[torch.Tensor]) -> CudaStream | None:
    """Return the calling thread's current CUDA stream on the tensors' device; None for tensors on the CPU.

    Raises:
        ValueError: The tensors are on several devices, or on a device other than CPU and CUDA.
    """
    devices = {source.device for source in sources}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"hvd.grouped_{kind} takes tensors of one device, got some on {names}")
    stream = controller.group.stream_of(sources[0]) if sources else None
    if stream is not None:
        controller.use_device(sources[0].device)
    return stream


def _root(root_rank: int, ranks: list[int]) -> int:
    if root_rank not in ranks:
        raise ValueError(f"root_rank must be one of the process set's ranks, {ranks}, got {root_rank!r}")
    return ranks.index(root_rank)


def poll(handle: int) -> bool:
    """Return whether an operation has finished; then `synchronize` returns immediately."""
    if handle not in _pending:
        raise ValueError(f"handle {handle} was not given by an operation, or has been synchronized already")
    return _pending[handle][0].handle.done()


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; None for a handle that was already synchronized.

    Raises:
        HorovodInternalError: The operation failed.
    """
    if handle not in _pending:
        return None
    entry, controller = _pending[handle]
    try:
        result = wait(entry.handle, controller)
        if entry.request.device != "cpu":
            entry.lend(controller.group.stream_of(entry.sources[0]))
        return result
    finally:
        _pending.pop(handle, None)


def in_place(name: str, begin: Callable[_P, int], *, blocking: bool = False) -> Callable[_P, Any]:
    """Return the in-place form, with this name, of a function that starts an operation.

    Args:
        name: The name.
        begin: The function, which has a parameter `in_place`.
        blocking: Whether it returns the result rather than a handle.
    """

    @functools.wraps(begin)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        handle = begin(*args, in_place=True, **kwargs)  # type: ignore[arg-type]
        return synchronize(handle) if blocking else handle

    call.__name__ = call.__qualname__ = name
    return call


def wait(handle: Handle[Any], controller: Controller) -> Any:
    """Wait for an operation. Log a warning when it stalls, and abort the job after the shutdown time if one is set."""
    settings = controller.settings
    waited, longest = 0.0, settings.shutdown_seconds
    while not handle.done():
        # The interval between warnings doubles.
        patience = min(waited or settings.stall_seconds, longest - waited)
        try:
            return handle.wait(patience)
        except CommTimeoutError:
            waited += patience
        text = f"{handle.name} has waited {waited:g} s for {controller.describe_missing(handle.name)}"
        if waited >= longest:
            controller.abort(f"{text}, which ends the job (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)")
        else:
            _log.warning(text)
    return handle.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called `barrier`."""
    synchronize(start("barrier", [], None, process_set, grouped=True))


def join(device: int = -1) -> int:
    """Contribute zeros to the allreduces of ranks that have more data than this rank, until all ranks have joined.

    An average still divides by the number of all ranks. Meanwhile the other ranks' allgather, broadcast, alltoall and
    reducescatter, and allreduces with op Min, Max and Product, end with HorovodInternalError.

    Args:
        device: Ignored; zeros are created where they are needed.

    Returns:
        The rank that joined last, on all ranks.
    """
    controller = current_job().controller(0)
    last: int = wait(controller.join(), controller)
    return last
