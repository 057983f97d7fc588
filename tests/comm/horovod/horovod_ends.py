"""How jobs of hpsearch_comm.horovod end: each function runs on every rank of a new job."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch

import hpsearch_comm as comm
import hpsearch_comm.horovod as hvd
from tests.comm.meeting import free_port


def enter(group: comm.Group, **env: str) -> None:
    """Start a job of a group's ranks."""
    port = group.broadcast_object(free_port() if group.rank == 0 else None)
    os.environ.update(RANK=str(group.rank), WORLD_SIZE=str(group.size), **env)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), HPSEARCH_COMM_SECRET=bytes(32).hex())
    hvd.init()


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    raise AssertionError("no error")


def one_dies(group: comm.Group, when: str) -> list[Any]:
    enter(group)
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 1:
        if when == "with a handle":
            hvd.allreduce_async(torch.ones(1), name="x")
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "joined":
        said = [error_of(hvd.join)]
    else:
        handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in "yx"]
        said = [error_of(lambda handle=handle: hvd.synchronize(handle)) for handle in handles]  # type: ignore[misc]
    said.append(error_of(lambda: hvd.allreduce(torch.ones(1), name="y")))
    said.append(error_of(lambda: hvd.add_process_set([0])))
    hvd.shutdown()
    return said


def one_leaves(group: comm.Group) -> list[Any]:
    """Let rank 1 shut down while it has operations under way, and others wait for it."""
    enter(group)
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(1), name="its own")
        hvd.shutdown()
        return [error_of(lambda: hvd.synchronize(handle))]
    return [error_of(lambda: hvd.allreduce(torch.ones(1), name="another's")), hvd.is_initialized()]


def one_leaves_while_its_threads_wait(group: comm.Group) -> list[str]:
    enter(group)
    if hvd.rank() == 1:
        said = []
        waits = [
            threading.Thread(
                target=lambda name=name: said.append(error_of(lambda: hvd.broadcast(torch.ones(1), 0, name)))
            )
            for name in "ab"
        ]
        for wait in waits:
            wait.start()
        while len(comm_names()) < 2:
            pass
        hvd.shutdown()
        for wait in waits:
            wait.join()
        return said
    return [error_of(lambda: hvd.barrier())]


def comm_names() -> list[str]:
    from hpsearch_comm.horovod.job import current_job

    return list(current_job().controller(0)._pending)


def all_leave_without_waiting(group: comm.Group) -> str:
    """Let each rank have called the same, and none wait for it."""
    enter(group)
    hvd.allreduce_async(torch.ones(1), name="x")
    hvd.shutdown()
    return "left"


def removed_under_way(group: comm.Group) -> str:
    enter(group)
    both = hvd.add_process_set([0, 1])
    handle = hvd.allreduce_async(torch.ones(1), name=f"of {hvd.rank()}", process_set=both) if both.included() else None
    hvd.remove_process_set(both)
    said = "" if handle is None else error_of(lambda: hvd.synchronize(handle))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    return said


def a_child(group: comm.Group) -> list[Any]:
    """Fork; the child may ask where it is, and nothing else."""
    enter(group)
    hvd.allreduce(torch.ones(1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = error_of(lambda: hvd.allreduce(torch.ones(1), name="in the child"))
        hvd.shutdown()
        os.write(write, f"{hvd.is_initialized()} {said}".encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(read, 10_000).decode()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    hvd.shutdown()
    return [said, total]


def one_is_late(group: comm.Group) -> list[Any]:
    """Wait for longer than the groups' own timeout: rank 1 comes when rank 0 has said twice that it waits."""
    enter(group, HPSEARCH_COMM_TIMEOUT="0.2", HOROVOD_STALL_CHECK_TIME_SECONDS="0.3")
    said: list[str] = []
    ready = torch.zeros(1)

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if len(said) == 2:
                group.send(ready, 1)

    logging.getLogger("hpsearch_comm.horovod").addHandler(Listening())
    if hvd.rank() == 1:
        group.recv(ready, 0)
    total = hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum).item()
    hvd.shutdown()
    return [total, said]


def one_is_given_up(group: comm.Group, how: str) -> list[Any]:
    """Wait for rank 1, which comes when the others have waited for too long."""
    enter(group, HOROVOD_STALL_CHECK_TIME_SECONDS="0.2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="0.5")
    ready = torch.zeros(1)
    if hvd.rank() == 1:
        for rank in (0, 2):
            group.recv(ready, rank)
        said = [error_of(lambda: hvd.allreduce(torch.ones(1), name="late"))]
    else:
        said = [error_of(hvd.join if how == "joined" else lambda: hvd.allreduce(torch.ones(1), name="late"))]
        said.append(error_of(hvd.barrier))
        group.send(ready, 1)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0
    hvd.shutdown()
    return said


def again_and_again(group: comm.Group) -> list[float]:
    """Start jobs one after another, without waiting for each other between."""
    enter(group)
    totals = []
    for turn in range(5):
        totals.append(hvd.allreduce(torch.tensor([float(turn)]), op=hvd.Sum).item())
        hvd.shutdown()
        hvd.init(process_sets=[hvd.ProcessSet([0])] if turn % 2 else "dynamic")
    hvd.shutdown()
    hvd.shutdown()
    return totals


def stale_process_sets(group: comm.Group) -> list[Any]:
    enter(group)
    stale = hvd.add_process_set([0, 1])
    hvd.shutdown()
    hvd.init()
    other = hvd.add_process_set([1, 2])
    try:
        hvd.allreduce(torch.ones(1), process_set=stale)
    except ValueError as error:
        said = str(error)
    numbers = [stale.process_set_id, other.process_set_id]
    hvd.barrier()
    hvd.shutdown()
    return [*numbers, said]
