"""The offset between two hosts' clocks."""

from __future__ import annotations

import threading
from typing import Any

from hpsearch_comm.timeline.clock import compare_clocks, offset_from


def test_the_middle_of_what_all_rounds_leave_possible() -> None:
    # Rank 0's clock is 1000 ahead; the second round is the quicker one.
    ours = [(0, 100), (200, 220)]
    theirs = [(1010, 1090), (1202, 1222)]
    # The second round alone: more than 1202 - 220 = 982, less than 1222 - 200 = 1022.
    assert offset_from(ours[1:], theirs[1:]) == 1002
    assert offset_from(ours, theirs) == 1002


def test_ranks_find_the_offset_through_their_exchange() -> None:
    size, ahead = 2, 5_000_000_000
    meeting = threading.Barrier(size)
    values: list[Any] = [None] * size
    found: list[tuple[int, int]] = [(0, 0)] * size
    ticks = iter(range(10**9))  # one true time for both: every reading of a clock comes after the one before

    def run(rank: int) -> None:
        def exchange(value: Any) -> list[Any]:
            values[rank] = value
            meeting.wait(30)
            everyone = list(values)
            meeting.wait(30)
            return everyone

        found[rank] = compare_clocks(exchange, rank, lambda: next(ticks) + (ahead if rank == 0 else 0))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found[0][0] == 0
    assert abs(found[1][0] - ahead) <= 4  # a round has four readings
    assert found[0][1] == found[1][1] >= ahead
