"""Turn what a trainable raised into the failure that the journal keeps."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from hpsearch.errors import (
    CheckpointError,
    HpsearchError,
    StorageError,
    TrainableError,
    UnreadableCheckpointError,
    UnwritableError,
    causes,
    exception_line,
)
from hpsearch.trial import Failure

__all__ = ["bounded", "failure_of"]

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""The package that stands around users' code."""

_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 32_000
"""Characters that the journal keeps: every look at the study reads them."""

_PEERS = ("CommTimeoutError", "GroupClosedError", "PeerLost", "RefusedError", "RendezvousError")
"""Errors of hpsearch_comm by which a rank ends because of the others."""


def failure_of(error: BaseException) -> Failure:
    """Describe an exception by the line that names it, and its traceback without our own frames."""
    report = traceback.TracebackException.from_exception(error)
    _drop_our_frames(report)
    text = "".join(report.format())
    if isinstance(error, StorageError):
        return Failure("storage", str(error), text)
    if isinstance(error, UnreadableCheckpointError):
        return Failure("checkpoint", str(error), text)
    if isinstance(error, UnwritableError):
        return Failure("raised", str(error), text)
    if isinstance(error, (TrainableError, CheckpointError)):
        return Failure("contract", str(error), text)
    if _is_for_want_of_room(error):
        return Failure("storage", f"the trainable raised {exception_line(error)}. Make room, then resume.", text)
    if isinstance(error, HpsearchError):  # also at a script's exit, when torch can't be imported any more
        return Failure("raised", exception_line(error), text)
    if (told := _memory_told(error)) is not None:
        return Failure("memory", f"{exception_line(error)}; its process had {told}", text)
    if (lost := _loss_of_peers(error)) is not None:
        return Failure("peer", str(lost).partition("\n")[0], text)
    return Failure("raised", exception_line(error), text)


def bounded(failure: Failure) -> Failure:
    """Give the failure as the journal keeps it: of a long text the beginning and the end."""
    message, trace = _shortened(failure.message, _MAX_MESSAGE, " ... "), failure.traceback
    if len(trace) > _MAX_TRACEBACK:
        left_out = f"\n... {len(trace) - _MAX_TRACEBACK} characters left out: the whole is in output.log ...\n"
        trace = _shortened(trace, _MAX_TRACEBACK, left_out)
    return replace(failure, message=message, traceback=trace)


def _shortened(text: str, limit: int, between: str) -> str:
    half = limit // 2
    return text if len(text) <= limit else text[:half] + between + text[-half:]


def _loss_of_peers(error: BaseException) -> BaseException | None:
    """Find what a group raised behind what a trainable made of it."""
    if (errors := sys.modules.get("hpsearch_comm.errors")) is None:  # importing it would import torch
        return None
    kinds = tuple(getattr(errors, name) for name in _PEERS)
    return next((cause for cause in causes(error) if isinstance(cause, kinds)), None)


def _is_for_want_of_room(error: BaseException) -> bool:
    """Say whether a disk was full, for what the trainable wrote itself or printed: on another day it is not."""
    refused = (cause.errno for cause in causes(error) if isinstance(cause, OSError))
    return any(number in (errno.ENOSPC, errno.EDQUOT) for number in refused)


def _memory_told(error: BaseException) -> str | None:
    """Say how much memory there is, where an allocator refused."""
    from hpsearch_trainers.memory import is_out_of_memory, memory_told  # it imports torch

    return memory_told() if is_out_of_memory(error) else None


def _drop_our_frames(report: traceback.TracebackException) -> None:
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        if (one := pending.pop()) is None:
            continue
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
        pending += [one.__cause__, one.__context__, *(one.exceptions or ())]
