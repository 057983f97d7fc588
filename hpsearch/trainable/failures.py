"""Conversion of a trainable's exception to the failure in the journal."""

from __future__ import annotations

import errno
import os
import re
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

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""Folder of hpsearch. Frames in this folder are removed from tracebacks."""

_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 32_000
"""Limits in characters. Every command that reads the journal reads these texts."""

_PEERS = ("CommTimeoutError", "GroupClosedError", "PeerLost", "RefusedError", "RendezvousError")
"""Names of the hpsearch_comm errors in a rank that ends because of another rank."""


_NO_MEMORY = re.compile("out of memory|OutOfMemory|MemoryError|(an't|annot) allocate memory|bad_alloc|ALLOC_FAILED")
_NO_TIME = "ran over its trial_timeout"
"""Texts in the messages of failures; those of torch are in `hpsearch_trainers.memory`, whose import takes long."""


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception: kind, message, and traceback without frames of hpsearch."""
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
        return Failure("contract", str(error), text, error.key if isinstance(error, TrainableError) else "")
    if _is_disk_full(error):
        return Failure("storage", f"the trainable raised {exception_line(error)}. Make room, then resume.", text)
    if isinstance(error, HpsearchError):  # first, as torch cannot be imported at a script's exit
        return Failure("raised", exception_line(error), text)
    if (memory := _memory_if_exhausted(error)) is not None:
        return Failure("memory", f"{exception_line(error)}; its process had {memory}", text)
    if (peer_error := _peer_error(error)) is not None:
        return Failure("peer", str(peer_error).partition("\n")[0], text)
    return Failure("raised", exception_line(error), text)


def failure_of_message(message: str, traceback: str = "") -> Failure:
    """Return the failure for a message that was recorded, told by a user, or printed last by a script."""
    if _NO_MEMORY.search(message):
        return Failure("memory", message, traceback)
    return Failure("timeout" if _NO_TIME in message else "raised", message, traceback)


def bounded(failure: Failure) -> Failure:
    """Return the failure with long texts shortened for the journal: their beginning and end are kept."""
    message, trace = _shortened(failure.message, _MAX_MESSAGE, " ... "), failure.traceback
    if len(trace) > _MAX_TRACEBACK:
        left_out = f"\n... {len(trace) - _MAX_TRACEBACK} characters left out: the whole is in output.log ...\n"
        trace = _shortened(trace, _MAX_TRACEBACK, left_out)
    return replace(failure, message=message, traceback=trace)


def _shortened(text: str, limit: int, between: str) -> str:
    half = limit // 2
    return text if len(text) <= limit else text[:half] + between + text[-half:]


def _peer_error(error: BaseException) -> BaseException | None:
    """Return the error that another rank caused, from the chain of causes; None if there is none."""
    if (errors := sys.modules.get("hpsearch_comm.errors")) is None:  # importing it would import torch
        return None
    kinds = tuple(getattr(errors, name) for name in _PEERS)
    return next((cause for cause in causes(error) if isinstance(cause, kinds)), None)


def _is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk stopped the trainable's own writes or output."""
    numbers = (cause.errno for cause in causes(error) if isinstance(cause, OSError))
    return any(number in (errno.ENOSPC, errno.EDQUOT) for number in numbers)


def _memory_if_exhausted(error: BaseException) -> str | None:
    """Return a description of the memory usage if an allocation failed; else None."""
    from hpsearch_trainers.memory import is_out_of_memory, memory_usage  # it imports torch

    return memory_usage() if is_out_of_memory(error) else None


def _drop_our_frames(report: traceback.TracebackException) -> None:
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        if (exception := pending.pop()) is None:
            continue
        exception.stack[:] = [frame for frame in exception.stack if not frame.filename.startswith(_OURS)]
        pending += [exception.__cause__, exception.__context__, *(exception.exceptions or ())]
