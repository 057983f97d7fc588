"""The zero-copy allreduce beside what the memory itself takes for the same work.

In a zero-copy allreduce of n bytes each of p ranks must read its part, n/p bytes, from every buffer, add it up, and
write the sum into every buffer: p - 1 additions and p - 1 copies of n/p bytes. All ranks do just that at once, in
memory of their own, without any waiting for each other: for 64 MB and 2 ranks one addition and one copy of 32 MB.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.benchmarks.collectives.block import Block, take
from tests.benchmarks.collectives.collective import turn
from tests.benchmarks.collectives.contenders import ZeroCopy
from tests.benchmarks.collectives.sizes import format_size
from tests.benchmarks.collectives.stage import Stage

NBYTES = 64 << 20
BARE = "the additions and copies alone"


def measure(stage: Stage) -> tuple[list[Block], dict[str, Any]]:
    """Take turns, round after round."""
    plan = stage.plan
    group = stage.group("ours")
    numel = NBYTES // 4
    ours = ZeroCopy(group, numel)
    subject = format_size(NBYTES)
    mine, theirs, target = (torch.zeros(numel // plan.ranks) for _ in range(3))

    def dirty() -> None:
        mine.fill_(1.0)
        theirs.fill_(2.0)

    def bare() -> None:
        for _ in range(plan.ranks - 1):
            torch.add(mine, theirs, out=mine)
            target.copy_(mine)

    blocks: list[Block] = []
    for number in range(plan.rounds):
        stage.say(f"round {number + 1} of {plan.rounds}")
        blocks.append(turn(stage, ours, subject, number, numel))
        blocks.append(take(stage.meeting, BARE, subject, number, plan.seconds, dirty, bare))
    return blocks, {}
