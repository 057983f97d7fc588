"""Limit the GPUs that a process sees, and its share of a GPU's memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NoReturn

from hpsearch.errors import TrainableError
from hpsearch.sweep.parallel import STRATEGY, Strategies
from hpsearch.trainable.trainables import class_of
from hpsearch.worker.child_process import environment

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_hiding = threading.Lock()
_hidden = ExitStack()
_users = 0


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """Hide all GPUs from torch in this process, and from its children, within the block.

    CUDA reads its environment once per process, at its first use. The environment alone would come too late after an
    earlier use, and would hide the GPUs for good if the first use were in the block. So torch's own functions are
    replaced, too. Several threads may enter at once.
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
    until.enter_context(environment({_VISIBLE: ""}))


def _refuse() -> NoReturn:
    raise RuntimeError("No CUDA GPUs are available: resources.gpus_per_worker is 0")


@contextlib.contextmanager
def part_of_gpu(fraction: float) -> Iterator[None]:
    """Limit torch in this process to a part of its GPU's memory within the block.

    If several processes share a GPU without a limit, the first one to cache memory makes the others fail.

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
    """Release cached memory at the end of a segment, if other processes share the GPU.

    Args:
        gpus: Number of GPUs of this worker.
    """
    if not 0 < gpus < 1:
        return
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def check_gpus(target: Any, gpus: float, strategies: Strategies | None) -> None:
    """Check that a `Trainer` can use the GPUs of its worker.

    Args:
        target: The trainable.
        gpus: Number of GPUs of its worker, or its fraction of one.
        strategies: How several workers synchronize.

    Raises:
        TrainableError: The worker has more GPUs than the trainable uses, or has one and a strategy can't use it.
    """
    kind = class_of(target)
    if not gpus or kind is None:
        return
    from hpsearch_trainers import Trainer
    from hpsearch_trainers.precision import training_device

    if not issubclass(kind, Trainer):
        return
    if gpus > 1:
        raise TrainableError(
            f"resources.gpus_per_worker must be 1 or less for a Trainer, which trains on one GPU, got {gpus:g}: set "
            f"gpus_per_worker: 1 and workers_per_trial: {gpus:g}, and a trial trains on {gpus:g} GPUs"
        )
    on_the_host = [] if strategies is None else strategies.on_the_host
    if on_the_host and training_device().type != "cpu":
        raise TrainableError(
            f"resources.gpus_per_worker must be 0 for a Trainer where {STRATEGY} may be {' or '.join(on_the_host)}, "
            f"which trains on the CPU, got {gpus:g}: set gpus_per_worker: 0, or take another strategy"
        )
