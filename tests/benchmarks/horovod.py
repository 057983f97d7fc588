"""What Horovod's API costs beside the group under it: operations that find each other by name first, on 2 ranks.

Both run in the same processes, in turns, of each of which the quickest call counts. The burst is a hundred small
gradients in the background, which travel together in Horovod's API, and one by one in the group.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import torch

import hpsearch_comm.horovod as hvd
from hpsearch_comm import Group
from tests.benchmarks.figures import Figure
from tests.comm.horovod.horovod_ends import enter
from tests.comm.process_ranks import ProcessRanks

SIZES = {"32 bytes": (8, 200), "64 KiB": (1 << 14, 200), "1 MiB": (1 << 18, 50), "16 MiB": (1 << 22, 10)}
"""Elements, and how often in a turn."""
BURST = "burst of 100 times 4 KiB"


def timed(group: Group, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the microseconds of an operation by Horovod's API and by the group, in turn; called on a rank."""
    torch.set_num_threads(1)
    enter(group)
    found = {}
    for name, (elements, times) in SIZES.items():
        tensor = torch.zeros(elements)
        ways = (
            lambda tensor=tensor, name=name: hvd.allreduce_(tensor, name=name, op=hvd.Sum),
            lambda tensor=tensor: group.allreduce(tensor, "sum"),
        )
        found[name] = _turns(group, rounds, times, ways)
    gradients = [torch.zeros(1024) for _ in range(100)]

    def through_horovods() -> None:
        names = enumerate(gradients)
        handles = [hvd.allreduce_async_(gradient, name=f"{number}", op=hvd.Sum) for number, gradient in names]
        for handle in handles:
            hvd.synchronize(handle)

    def through_the_group() -> None:
        for handle in [group.allreduce_async(gradient, "sum") for gradient in gradients]:
            handle.wait()

    found[BURST] = _turns(group, rounds, 10, (through_horovods, through_the_group))
    hvd.shutdown()
    return found


def _turns(
    group: Group, rounds: int, times: int, ways: tuple[Callable[[], object], Callable[[], object]]
) -> list[tuple[float, float]]:
    return [(_time(group, times, ways[0]), _time(group, times, ways[1])) for _ in range(rounds + 1)][1:]


def _time(group: Group, times: int, way: Callable[[], object]) -> float:
    """Return the microseconds of the fastest of some calls: other load on the machine only adds to them."""
    group.barrier()
    quickest = math.inf
    for _ in range(times):
        began = time.perf_counter()
        way()
        quickest = min(quickest, time.perf_counter() - began)
    return quickest * 1e6


def measure(rounds: int) -> list[Figure]:
    """Run Horovod's API and the group in turns."""
    with ProcessRanks("tests.benchmarks.horovod") as ranks:
        outcome, *_ = outcomes = ranks.call(2, "timed", rounds)
    if any(each.error or each.code for each in outcomes):
        sys.exit(f"a rank failed: {outcomes}")
    return [
        Figure(
            f"allreduce, 2 ranks, {name}",
            "µs",
            [ours for ours, _ in turns],
            "",
            "the group",
            [peer for _, peer in turns],
        )
        for name, turns in outcome.result.items()
    ]
