"""Allreduces in shared memory beside what the memory itself takes for the same work.

In a zero-copy allreduce of n bytes each of p ranks must read its part, n/p bytes, from every buffer, add it up, and
write the sum into every buffer: p - 1 additions and p - 1 copies of n/p bytes. All ranks do just that at once, in
memory of their own, without any waiting for each other: for 64 MB and 2 ranks one addition and one copy of 32 MB.

A short allreduce of two ranks must at least say something to the other and hear its answer. That is a ping-pong: rank 0
copies its tensor into shared memory and counts, rank 1 sees the count, copies it out and back in, counts, and rank 0
sees that and copies it out. Both look all the time, in Python, and check nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.collectives.block import Block, take
from tests.benchmarks.collectives.collective import turn
from tests.benchmarks.collectives.contenders import Copies, ZeroCopy
from tests.benchmarks.collectives.sizes import format_size
from tests.benchmarks.collectives.stage import Stage

NBYTES = 64 << 20
SHORT = 1 << 10
BARE = "the bare work"
_STRIDE = 4096


def measure(stage: Stage) -> tuple[list[Block], dict[str, Any]]:
    """Take turns, round after round."""
    plan = stage.plan
    group = stage.group("ours")
    ours = ZeroCopy(group, NBYTES // 4)
    copies = Copies(group, SHORT // 4)
    mine, theirs, target = (torch.zeros(NBYTES // 4 // plan.ranks) for _ in range(3))

    def dirty() -> None:
        mine.fill_(1.0)
        theirs.fill_(2.0)

    def bare() -> None:
        for _ in range(plan.ranks - 1):
            torch.add(mine, theirs, out=mine)
            target.copy_(mine)

    short = torch.zeros(SHORT // 4)
    play = ping_pong(stage, short) if plan.ranks == 2 else None
    blocks: list[Block] = []
    for number in range(plan.rounds):
        stage.say(f"round {number + 1} of {plan.rounds}")
        subject = format_size(NBYTES)
        blocks.append(turn(stage, ours, subject, number, NBYTES // 4))
        blocks.append(take(stage.meeting, BARE, subject, number, plan.seconds, dirty, bare))
        if play is not None:
            subject = format_size(SHORT)
            blocks.append(turn(stage, copies, subject, number, SHORT // 4))
            fill = lambda: short.fill_(1.0)  # noqa: E731
            blocks.append(take(stage.meeting, BARE, subject, number, plan.seconds, fill, play))
    return blocks, {}


def ping_pong(stage: Stage, tensor: torch.Tensor) -> Callable[[], object]:
    """Return a function that plays one ping-pong of a tensor of at most a page, which the caller keeps, in place."""
    file = os.open(stage.directory / "ping-pong", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.ftruncate(file, 4 * _STRIDE)
    memory = mmap.mmap(file, 4 * _STRIDE)
    os.close(file)
    words, rank = memoryview(memory).cast("Q"), stage.rank
    base = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    own_word, other_word = (number * _STRIDE // 8 for number in (rank, 1 - rank))
    own_place, other_place = (base + (2 + number) * _STRIDE for number in (rank, 1 - rank))
    address, nbytes, copy, count = tensor.data_ptr(), tensor.nbytes, ctypes.memmove, 0

    def serve() -> None:
        nonlocal count
        count += 1
        copy(own_place, address, nbytes)
        words[own_word] = count
        while words[other_word] < count:
            pass
        copy(address, other_place, nbytes)

    def answer() -> None:
        nonlocal count
        count += 1
        while words[other_word] < count:
            pass
        copy(address, other_place, nbytes)
        copy(own_place, address, nbytes)
        words[own_word] = count

    return answer if rank else serve
