"""Operations in which a rank is killed; called on the ranks of process_ranks."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm import Group, Handle
from hpsearch_comm.operations.lanes import OutgoingLane
from hpsearch_comm.shm.barrier import Barrier
from hpsearch_comm.transport.link import Transfer
from hpsearch_comm.transport.mesh import Mesh

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


def killed_among_messages(group: Group, role: str) -> None:
    """Let rank 2 die while rank 0 sends to it, receives from it or from any, or waits for the end of one message."""
    group.barrier()
    if group.rank == 0:
        handles: list[Handle[torch.Tensor]] = [group.recv_async(torch.zeros(3), 1, 5)]
        if role == "sends":
            handles.append(group.send_async(torch.zeros(300 * COUNT), 2))
        elif role == "receives from any":
            handles.append(group.recv_async(torch.zeros(3)))
        else:
            handles.append(group.recv_async(torch.zeros(300 * COUNT), 2))
        group.barrier()
        handles[-1].wait()
    group.barrier()
    if group.rank == 2:
        if role == "receives a part":
            OutgoingLane._transferred = _die_within  # type: ignore[assignment]
            group.send(torch.zeros(300 * COUNT), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    group.recv(torch.zeros(1), 0)


_transferred = OutgoingLane._transferred


def _die_within(lane: OutgoingLane, transfer: Transfer) -> Iterator[None]:
    if transfer.done:  # the envelope
        return _transferred(lane, transfer)
    assert transfer.advance()
    assert not transfer.done
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


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


def killed_after_children(group: Group, victim: int) -> None:
    """Every rank forks children that leave in each way in which a process can, and only then the victim dies."""
    group.barrier()
    error = KeyError("fold")
    ways: list[Callable[[], object]] = [group.close, lambda: group.close(error), atexit._run_exitfuncs]
    for leave in ways:
        pid = os.fork()
        if pid == 0:
            try:
                leave()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        group.allreduce(torch.ones(5))
        group.allreduce_async(torch.ones(5)).wait()
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


class Alarm(Exception):
    """What the handlers of signals raise here."""


def _on_alarm(action: Callable[[], object]) -> None:
    signal.signal(signal.SIGALRM, lambda _number, _frame: action())
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def _raise_alarm() -> None:
    raise Alarm("late")


def _await_end(group: Group) -> None:
    """Do something else until the group has ended, and then find out why."""
    while group._abort_state.error is None:
        signal.sigtimedwait([], 0.02)
    group.barrier()


def interrupted(group: Group, rank: int) -> None:
    """One rank is interrupted while it waits for the others in a blocking operation."""
    group.barrier()
    if group.rank == rank:
        _on_alarm(_raise_alarm)
        group.allreduce(torch.ones(5))
    _await_end(group)


def interrupted_wait(group: Group, rank: int, go: str) -> list[list[float]]:
    """One rank is interrupted while it waits for a handle, and behind it; then it waits again."""
    tensors = [torch.ones(5), torch.ones(5)]
    if group.rank != rank:
        while not Path(go).exists():
            signal.sigtimedwait([], 0.02)
        return [group.allreduce(tensor, "sum").tolist() for tensor in tensors]
    handle = group.allreduce_async(tensors[0], "sum")
    waits: list[Callable[[], object]] = [handle.wait, lambda: group.allreduce(tensors[1], "sum")]
    for wait in waits:
        try:
            _on_alarm(_raise_alarm)
            wait()
        except Alarm:
            continue
        raise AssertionError("it wasn't interrupted")
    Path(go).touch()
    handle.wait()
    handle.wait()
    group.close()
    return [tensor.tolist() for tensor in tensors]


def interrupted_close(group: Group, rank: int) -> None:
    """One rank is interrupted while it waits for the others in order to finish what it has called."""
    group.barrier()
    if group.rank == rank:
        group.allreduce_async(torch.ones(5))
        try:
            _on_alarm(_raise_alarm)
            group.close()
        finally:
            group.close()
    _await_end(group)


def closed_by_handler(group: Group, rank: int) -> None:
    """A signal's handler closes the group in the middle of an operation of the same thread."""
    group.barrier()
    if group.rank == rank:
        _on_alarm(group.close)
        group.allreduce(torch.ones(5))
    _await_end(group)


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
    """One rank does something else until each of the others has given up."""
    if group.rank == rank:
        group.barrier()
        others = [Path(f"{go}-{other}") for other in range(group.size) if other != rank]
        while not all(other.exists() for other in others):
            signal.sigtimedwait([], 0.02)
        group.allreduce(torch.ones(5))  # what they gave may still be there, before it has heard of them
        group.allreduce(torch.ones(5))
        return
    try:
        group.barrier()
        group.allreduce(torch.ones(5))
    finally:
        Path(f"{go}-{group.rank}").touch()


def stopped(group: Group, victim: int, seconds: float) -> list[float]:
    """One rank's process is stopped while the others wait for it in an operation, and goes on after so many seconds."""
    pids = group.allgather_object(os.getpid())
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif group.rank == (victim + 1) % group.size:
        _await_stop(pids[victim])
        threading.Timer(seconds, os.kill, (pids[victim], signal.SIGCONT)).start()
    return [group.allreduce(torch.ones(COUNT), "sum")[0].item() for _ in range(3)]


def stopped_for_good(group: Group, victim: int) -> None:
    """One rank's process is stopped until another one has given up."""
    pids = group.allgather_object(os.getpid())
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        group.allreduce(torch.ones(COUNT))
    finally:
        if group.rank == (victim + 1) % group.size:
            _await_stop(pids[victim])
            os.kill(pids[victim], signal.SIGCONT)


def _await_stop(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":  # or it has ended
        signal.sigtimedwait([], 0.02)


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
