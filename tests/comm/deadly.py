"""Operations in which a rank is killed; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm import Group
from hpsearch_comm.links.mesh import Mesh
from hpsearch_comm.memory.words import Barrier

COUNT = 30_000
OPERATIONS = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "barrier", "allgather_object")


def call(group: Group, name: str) -> Any:
    tensor = torch.arange(float(COUNT)) + group.rank
    if name == "zero_copy":
        shared = group.empty(COUNT)
        shared.copy_(tensor)
        return group.allreduce(shared, "sum")
    if name == "allreduce_async":
        return group.allreduce_async(tensor, "sum").wait()
    if name in ("allreduce", "reduce_scatter"):
        return getattr(group, name)(tensor, "sum")
    if name == "barrier":
        return group.barrier()
    if name == "allgather_object":
        return group.allgather_object({"rank": group.rank, "text": "x" * 1000})
    return getattr(group, name)(tensor)


def killed_in(group: Group, name: str, victim: int, phase: int) -> bool:
    """Run an operation in which one rank kills itself when it comes to wait for the others for the n-th time.

    Returns:
        Whether it was over before.
    """
    group.barrier()
    if group.rank == victim:
        _kill_at(phase)
    call(group, name)
    if group.rank == victim:
        _kill_at(-1)
    group.barrier()
    return True


_waits = 0
_fatal = -1


def _kill_at(phase: int) -> None:
    global _waits, _fatal
    _waits, _fatal = 0, phase
    for owner, method in ((Mesh, "exchange"), (Barrier, "wait")):
        original = getattr(owner, method)
        if not hasattr(original, "deadly"):
            setattr(owner, method, _deadly(original))


def _deadly(original: Any) -> Any:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        global _waits
        _waits += 1
        if _waits - 1 == _fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    wrapped.deadly = True  # type: ignore[attr-defined]
    return wrapped


def killed_while_others_wait(group: Group, victim: int) -> None:
    group.barrier()
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def killed_with_child(group: Group, victim: int, child: str) -> None:
    """The victim leaves a forked child behind, as a data loader does, which holds copies of all that it held."""
    group.barrier()
    if group.rank == victim:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, b"x")
            while True:
                signal.pause()
        os.read(reading, 1)
        Path(child).write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def raises(group: Group, rank: int) -> None:
    group.barrier()
    if group.rank == rank:
        raise ValueError("the batch is empty")
    group.barrier()


def leaves_early(group: Group, rank: int) -> None:
    group.barrier()
    if group.rank != rank:
        group.allreduce(torch.ones(5))


def stuck(group: Group, rank: int, go: str) -> None:
    """One rank does something else until the others have given up."""
    group.barrier()
    if group.rank == rank:
        while not Path(go).exists():
            signal.sigtimedwait([], 0.02)
        group.allreduce(torch.ones(5))
        return
    try:
        group.allreduce(torch.ones(5))
    finally:
        Path(go).touch()


def disagrees(group: Group, rank: int, how: str) -> None:
    group.barrier()
    odd = group.rank == rank
    if how == "shape":
        group.allreduce(torch.ones(6 if odd else 5), "sum")
    elif how == "dtype":
        group.allreduce(torch.ones(5, dtype=torch.float64 if odd else torch.float32), "sum")
    elif how == "op":
        group.allreduce(torch.ones(5), "max" if odd else "sum")
    elif how == "order":
        if odd:
            group.barrier()
        group.allreduce(torch.ones(5))
    elif how == "operation":
        (group.broadcast if odd else group.allreduce)(torch.ones(5))
    elif how == "root":
        group.broadcast(torch.ones(5), root=1 if odd else 0)
    elif how == "way":
        # One goes through shared memory, the other over links.
        (group.alltoall if odd else group.allreduce)(torch.ones(2 * group.size))
    group.barrier()
