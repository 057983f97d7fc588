"""Which GPUs a process sees, and how much of one's memory it takes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NoReturn

from hpsearch.errors import TrainableError

__all__ = ["check_one_gpu", "free_shared_gpu", "hide_gpus", "part_of_gpu", "without_gpus"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_hiding = threading.Lock()
_hidden = ExitStack()
_users = 0


def hide_gpus() -> None:
    """Let this process, and what it starts, see no GPU from here on; nothing in it has asked for one yet."""
    os.environ[_VISIBLE] = ""


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """Let torch in this process, and the processes that it starts, see no GPU meanwhile.

    CUDA reads its environment once in a process, when it is first asked for a device. The environment alone would come
    too late where something has asked before, and would hide the GPUs for good where something asks meanwhile. So
    torch's own functions answer instead. Several may be in it at once.
    """
    global _users
    with _hiding:
        _users += 1
        if _users == 1:
            _hide(_hidden)
    try:
        yield
    finally:
        with _hiding:
            _users -= 1
            if _users == 0:
                _hidden.close()


def _hide(until: ExitStack) -> None:
    import torch

    for module, name, answer in (
        (torch.cuda, "is_available", lambda: False),
        (torch.cuda, "device_count", lambda: 0),
        (torch.cuda, "_lazy_init", _refuse),
    ):
        until.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, answer)
    before = os.environ.get(_VISIBLE)
    until.callback(_set_visible, before)
    hide_gpus()


def _set_visible(devices: str | None) -> None:
    if devices is None:
        os.environ.pop(_VISIBLE, None)
    else:
        os.environ[_VISIBLE] = devices


def _refuse() -> NoReturn:
    raise RuntimeError("No CUDA GPUs are available: resources.gpus_per_worker is 0")


@contextlib.contextmanager
def part_of_gpu(fraction: float) -> Iterator[None]:
    """Let torch in this process allocate no more than a part of its GPU's memory meanwhile.

    Several processes share the GPU: without a limit the first one to cache memory would have the others fail.

    Args:
        fraction: Above 0, below 1.
    """
    import torch

    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)


def free_shared_gpu(gpus: float) -> None:
    """Give back memory that no tensor has any more, where others share the GPU; at the end of a segment.

    Args:
        gpus: Of this worker.
    """
    if not 0 < gpus < 1:
        return
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def check_one_gpu(target: Any, gpus: float) -> None:
    """See that a `Trainer` has no more GPUs than it uses.

    Args:
        target: The trainable.
        gpus: Of its worker.

    Raises:
        TrainableError: It has.
    """
    if gpus <= 1 or not isinstance(target, type):
        return
    from hpsearch_trainers import Trainer

    if issubclass(target, Trainer):
        raise TrainableError(
            f"resources.gpus_per_worker must be 1 or less for a Trainer, which trains on one GPU, got {gpus:g}: set "
            f"gpus_per_worker: 1 and workers_per_trial: {gpus:g}, and a trial trains on {gpus:g} GPUs"
        )
