"""Allreduce, ours and the peers' in turn: the same float32 sum in the same processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from hpsearch_comm.errors import CommError
from tests.benchmarks.collectives.block import Block, take
from tests.benchmarks.collectives.contenders import Contender, Copies, Mpi, ZeroCopy
from tests.benchmarks.collectives.sizes import format_size
from tests.benchmarks.collectives.stage import Stage

T = TypeVar("T")


def measure(stage: Stage) -> tuple[list[Block], dict[str, Any]]:
    """Take every contender's turn at every size, round after round."""
    plan = stage.plan
    group = stage.group("ours")
    most = max(plan.sizes) // 4
    ours = [Copies(group, most)]
    contenders: list[Contender] = [*ours]
    if plan.transport == "auto" and plan.algorithm in ("auto", "direct") and len(group.hosts) == 1:
        contenders.append(ZeroCopy(group, most))
    if "gloo" in plan.against:
        contenders.append(stage.gloo(most))
    if "mpi" in plan.against:
        contenders.append(Mpi(stage.rank, plan.ranks, most))
    blocks: list[Block] = []
    algorithms: dict[str, str] = {}
    for number in range(plan.rounds):
        for size in plan.sizes:
            subject = format_size(size)
            stage.say(f"round {number + 1} of {plan.rounds}: {subject}")
            for contender in in_turn(contenders, number):
                blocks.append(turn(stage, contender, subject, number, size // 4))
                if contender is ours[0]:
                    algorithms[subject] = str(group.last_algorithm)
    return blocks, {"algorithms": algorithms, "hosts": len(group.hosts)}


def turn(stage: Stage, contender: Contender, subject: str, number: int, numel: int) -> Block:
    """Take one turn of a contender, and see that its sum is right."""
    tensor, run = contender.prepare(numel)
    mine, ranks = float(stage.rank + 1), stage.plan.ranks
    expected = ranks * (ranks + 1) / 2
    # As a backward pass does, every rank writes its whole tensor before each repetition: its lines are in its cache,
    # and what the last sum left there is gone.
    block = take(stage.meeting, contender.name, subject, number, stage.plan.seconds, lambda: tensor.fill_(mine), run)
    if not bool((tensor == expected).all()):
        raise CommError(f"{contender.name} gave a wrong sum at {subject}: expected {expected:g} everywhere")
    return block


def in_turn(contenders: Sequence[T], number: int) -> Iterator[T]:
    """Yield all contenders, starting with another one in each round."""
    for place in range(len(contenders)):
        yield contenders[(place + number) % len(contenders)]
