"""Kills a rank with SIGKILL at every moment of every way through shared memory, and prints what became of the others.

Run as a program. Each line of its output is the JSON of one `Death`. It forks a process per rank, which the tests'
own process can't do safely.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.collectives.shm import chain, chunks, direct, direct_allreduce, pipeline
from hpsearch_comm.errors import PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.shm.barrier import Barrier
from hpsearch_comm.shm.memfd import Memfd
from hpsearch_comm.shm.shm_segment import CHUNK, ShmSegment
from hpsearch_comm.shm.slots import SLOT
from tests.comm.shm.shm_world import PATIENCE, allreduce_directly, socket_pairs

SIZE = 3
VICTIM = 1
LONG = SIZE * CHUNK // 4 + 100
"""Elements of float32 that take a rank two chunks of what it reduces."""

SUM = reduction_for("sum", torch.float32)


@dataclass
class Death:
    """What came of one kill."""

    path: str
    moment: int
    outcomes: list[str]
    """Of each other rank: the error's name and the rank it names."""
    mapped: list[int]
    """How many shared mappings each other rank still had after closing."""
    exits: list[int]
    moments: int
    """How many moments the victim lived through, if it lived."""


def begin(shm: ShmSegment, abort_state: AbortState, name: str) -> Operation:
    return Operation(shm.members[shm.index], Signature(0, name, "direct").pack(), 60.0, abort_state, spin=shm.may_spin)


def one_shot(shm: ShmSegment, abort_state: AbortState) -> None:
    tensor = torch.ones(100)
    allreduce_directly(shm, begin(shm, abort_state, "allreduce"), tensor, SUM, tensor)


def staged(shm: ShmSegment, abort_state: AbortState) -> None:
    tensor = torch.ones(LONG)
    allreduce_directly(shm, begin(shm, abort_state, "allreduce"), tensor, SUM, tensor)


def in_a_chain(shm: ShmSegment, abort_state: AbortState) -> None:
    shm.cores = 1  # on a machine with a core for each rank it would take more chunks
    tensor = torch.ones((SIZE + 1) * SLOT // 4 + 100)
    allreduce_directly(shm, begin(shm, abort_state, "allreduce"), tensor, SUM, tensor)


def zero_copy(shm: ShmSegment, abort_state: AbortState) -> None:
    tensor = shm.empty(begin(shm, abort_state, "empty"), 4 * LONG).view(torch.float32)
    allreduce_directly(shm, begin(shm, abort_state, "allreduce"), tensor, SUM, tensor)


def broadcast(shm: ShmSegment, abort_state: AbortState) -> None:
    direct.broadcast(shm, begin(shm, abort_state, "broadcast"), torch.ones(LONG), VICTIM)


def allgather(shm: ShmSegment, abort_state: AbortState) -> None:
    direct.allgather(shm, begin(shm, abort_state, "allgather"), list(torch.ones(SIZE, LONG // SIZE)))


def allgather_in_place(shm: ShmSegment, abort_state: AbortState) -> None:
    tensor = shm.empty(begin(shm, abort_state, "empty"), 4 * LONG).view(torch.float32)
    direct.gather_parts(shm, begin(shm, abort_state, "allgather"), tensor, split(LONG, SIZE))


def alltoall(shm: ShmSegment, abort_state: AbortState) -> None:
    parts = split(LONG, SIZE)
    sends = [torch.ones(stop - start) for start, stop in parts]
    start, stop = parts[shm.index]
    receives = [torch.empty(stop - start) for _ in parts]
    direct.alltoall(shm, begin(shm, abort_state, "alltoall"), sends, receives, parts[0][1])


def reduce_scatter(shm: ShmSegment, abort_state: AbortState) -> None:
    parts = split(LONG, SIZE)
    start, stop = parts[shm.index]
    out = torch.empty(stop - start)
    direct.reduce_scatter(shm, begin(shm, abort_state, "reduce_scatter"), torch.ones(LONG), parts, SUM, out)


def reduce_in_place(shm: ShmSegment, abort_state: AbortState) -> None:
    tensor = shm.empty(begin(shm, abort_state, "empty"), 4 * LONG).view(torch.float32)
    direct.reduce_parts(shm, begin(shm, abort_state, "allreduce"), tensor, split(LONG, 2), SUM)
    direct.gather_parts(shm, begin(shm, abort_state, "allreduce"), tensor, split(LONG, 2))


PATHS: dict[str, Callable[[ShmSegment, AbortState], None]] = {
    function.__name__: function
    for function in (
        one_shot,
        staged,
        in_a_chain,
        zero_copy,
        broadcast,
        allgather,
        allgather_in_place,
        alltoall,
        reduce_scatter,
        reduce_in_place,
    )
}


NOTICEABLE = [
    (owner, name, getattr(owner, name))
    for owner, name in (
        (Barrier, "wait"),
        (Memfd, "receive"),
        (Memfd, "map"),
        (chain, "copy"),
        (pipeline, "copy"),
        (chunks, "fold_piece"),
        (direct_allreduce, "fold_piece"),
        (direct_allreduce, "copy"),
        (direct, "copy"),
    )
]
"""What others could notice: (owner, name, call), looked up here: a name that is gone ends the program at once."""


class Executioner:
    """Counts the moments of the victim's life, and ends it at one of them."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.moments = 0

    def moment(self) -> None:
        if self.moments == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments += 1

    def attach(self) -> None:
        """Put a moment before everything that others could notice."""
        for owner, name, call in NOTICEABLE:
            setattr(owner, name, self._after_a_moment(call))

    def _after_a_moment(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            self.moment()
            return call(*arguments, **options)

        return observed


def watch(controls: dict[int, socket.socket], abort_state: AbortState) -> None:
    """Do as the group's watcher does: tell the abort state of a peer whose connection ends."""
    poll = select.poll()
    peers = {control.fileno(): peer for peer, control in controls.items()}
    for descriptor in peers:
        poll.register(descriptor, select.POLLIN)
    (descriptor, _), *_ = poll.poll()
    abort_state.fail(PeerLost(f"rank {peers[descriptor]} has died", peers[descriptor]))


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:hpsearch_comm")


def live(rank: int, path: str, descriptors: dict[int, socket.socket], controls: dict[int, socket.socket]) -> str:
    """Do the operation and meet once more; return what came of it."""
    abort_state = AbortState()
    watcher = threading.Thread(target=watch, args=(controls, abort_state), daemon=True)
    watcher.start()
    try:
        with contextlib.closing(ShmSegment(rank, range(SIZE), descriptors, abort_state)) as shm:
            PATHS[path](shm, abort_state)
            shm.meet(begin(shm, abort_state, "barrier"))
    except Exception as error:
        outcome = f"{type(error).__name__} {getattr(error, 'rank', '')}"
    else:
        return "done"
    # It wakes this rank's waits through memory that it holds meanwhile.
    watcher.join(PATIENCE)
    return outcome


def rank_process(rank: int, path: str, moment: int, ends: list[Any], report: int, go: int) -> None:
    """Be one rank: report the outcome, and stay until the others have reported too."""
    for pairs, other in itertools.product(ends, range(SIZE)):
        if other != rank:
            for end in pairs[other].values():
                end.close()
    executioner = Executioner(moment)
    if rank == VICTIM:
        executioner.attach()
    outcome = live(rank, path, ends[0][rank], ends[1][rank])
    os.write(report, json.dumps([rank, outcome, mapped(), executioner.moments]).encode() + b"\n")
    os.read(go, 1)


def run(path: str, moment: int) -> Death:
    """Run an operation on forked ranks, the victim's life ending at a moment; -1 for never."""
    ends = [socket_pairs(range(SIZE)), socket_pairs(range(SIZE))]
    (reading, report), (go, start) = os.pipe(), os.pipe()
    processes = []
    for rank in range(SIZE):
        process = os.fork()
        if process == 0:
            os.close(reading)
            os.close(start)
            try:
                rank_process(rank, path, moment, ends, report, go)
                os._exit(0)
            finally:
                os._exit(1)
        processes.append(process)
    for pairs in ends:
        for of_rank in pairs.values():
            for end in of_rank.values():
                end.close()
    os.close(report)
    os.close(go)
    with os.fdopen(reading) as lines:
        expected = SIZE if moment < 0 else SIZE - 1
        reports = sorted(json.loads(line) for line in itertools.islice(lines, expected))
    os.close(start)
    exits = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    outcomes, left = [outcome for _, outcome, _, _ in reports], [left for _, _, left, _ in reports]
    return Death(path, moment, outcomes, left, exits, max((moments for *_, moments in reports), default=0))


def main() -> None:
    """Run every path once to the end, and then with an end at every moment, or at each so-manieth of all paths."""
    torch.set_num_threads(1)
    step, places = int(sys.argv[1]), itertools.count()
    for path in PATHS:
        whole = run(path, -1)
        print(json.dumps(asdict(whole)), flush=True)
        for moment in (moment for moment in range(whole.moments) if next(places) % step == 0):
            print(json.dumps(asdict(run(path, moment))), flush=True)


if __name__ == "__main__":
    main()
