"""Operations under way, by the numbers that scripts hold."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hpsearch_comm.errors import CommTimeoutError
from hpsearch_comm.horovod.entry import Entry
from hpsearch_comm.horovod.job import current_job
from hpsearch_comm.horovod.process_sets import ProcessSet
from hpsearch_comm.horovod.request import ReduceOp, Request
from hpsearch_comm.operations.arguments import check_target, check_tensor
from hpsearch_comm.operations.work import Handle

__all__ = ["poll", "start", "synchronize"]

_log = logging.getLogger(__name__)
_STALL_SECONDS = 60.0
_numbers = itertools.count()


@dataclass(slots=True)
class _UnderWay:
    handle: Handle[Any]
    absent: Callable[[str], list[int]]


_under_way: dict[int, _UnderWay] = {}


def start(
    kind: str,
    tensors: list[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    grouped: bool = False,
    op: ReduceOp | None = None,
    root_rank: int | None = None,
    splits: list[int] | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start an operation of this kind; give its handle.

    Raises:
        ValueError: An argument can't be used. Nothing has been announced.
        HorovodInternalError: There is no job, or it has ended.
    """
    job = current_job()
    number = process_set.process_set_id
    full_name = job.name(f"grouped_{kind}" if grouped else kind, name, -1 if number is None else number)
    sources = [check_tensor(f"hvd.{kind}", tensor) for tensor in tensors]
    for source in sources:
        if not source.is_cpu:
            raise ValueError(
                f"hvd.{kind} takes tensors on the CPU here, got one on {source.device}: move it with tensor.cpu(), or "
                "train with hpsearch_comm.DataParallel, which takes CUDA tensors"
            )
        if in_place:
            check_target(f"hvd.{kind}_'s tensor", source)
    if number is None:
        raise ValueError(f"{process_set} has not been registered: pass it to hvd.init() or hvd.add_process_set()")
    controller = job.controller(number)
    request = Request(
        full_name,
        kind,
        tuple((str(source.dtype).removeprefix("torch."), tuple(source.shape)) for source in sources),
        op,
        () if root_rank is None else (_root(root_rank, process_set),),
        float(prescale_factor),
        float(postscale_factor),
    )
    entry = Entry(request, sources, tensors if in_place else None, splits, grouped)
    controller.submit(entry)
    handle = next(_numbers)
    _under_way[handle] = _UnderWay(entry.handle, controller.absent)
    return handle


def _root(root_rank: int, process_set: ProcessSet) -> int:
    if root_rank not in process_set.ranks:
        raise ValueError(
            f"root_rank must be one of the process set's ranks {process_set.ranks}, counted in the job, got {root_rank}"
        )
    return process_set.ranks.index(root_rank)


def poll(handle: int) -> bool:
    """Say whether an operation has ended, so that `synchronize` returns at once."""
    under_way = _under_way.get(handle)
    if under_way is None:
        raise ValueError(f"handle {handle} was not given by an operation, or has been synchronized already")
    return under_way.handle.done()


def synchronize(handle: int) -> Any:
    """Wait for an operation's end and give its result; None for a handle that has been synchronized already.

    Raises:
        HorovodInternalError: It couldn't be carried out.
    """
    under_way = _under_way.get(handle)
    if under_way is None:
        return None
    try:
        return wait(under_way.handle, under_way.absent)
    finally:
        _under_way.pop(handle, None)


def wait(handle: Handle[Any], absent: Callable[[str], list[int]]) -> Any:
    """Wait for an operation, and say so now and then when it takes long."""
    waited = 0.0
    while not handle.done():
        try:
            return handle.wait(_STALL_SECONDS)
        except CommTimeoutError:
            waited += _STALL_SECONDS
            _log.warning(
                "%s has waited %.0f s for ranks %s, which have not called it", handle.name, waited, absent(handle.name)
            )
    return handle.wait()
