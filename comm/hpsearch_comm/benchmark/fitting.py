"""Measures every algorithm over the sizes, for the cost model by which `auto` chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hpsearch_comm.algorithms.cost_model import CostModel, Measurement
from hpsearch_comm.benchmark.block import Block, Turn
from hpsearch_comm.benchmark.collective import in_turn, turn
from hpsearch_comm.benchmark.contenders import Copies
from hpsearch_comm.benchmark.sizes import format_size, parse_sizes
from hpsearch_comm.benchmark.stage import Stage
from hpsearch_comm.topology import Topology

__all__ = ["SIZES", "fit", "measure", "measurements"]

SIZES = parse_sizes("1K,4K,16K,64K,256K,1M,4M,16M")
"""What a fit looks at unless told otherwise."""

_WITHIN = ("direct", "ring", "butterfly", "naive")
_BETWEEN = ("ring", "butterfly", "naive")


def measure(stage: Stage) -> tuple[list[Block], dict[str, Any]]:
    """Take every algorithm's turn at every size: through shared memory where the ranks share a host, and over TCP."""
    plan = stage.plan
    most = max(plan.sizes) // 4
    probe = stage.group("probe", algorithm="auto")
    everywhere = [[rank] for rank in range(plan.ranks)]
    hosts: list[list[int]] = [list(ranks) for ranks in probe.hosts]
    wanted = [(algorithm, "tcp", everywhere) for algorithm in _BETWEEN]
    if plan.transport == "auto" and len(hosts) == 1:
        wanted += [(algorithm, "auto", hosts) for algorithm in _WITHIN]
    elif plan.transport == "auto" and len(hosts) < plan.ranks:
        wanted.append(("hierarchical", "auto", hosts))
    contenders, topologies = [], {}
    for algorithm, transport, ranks in wanted:
        name = f"{algorithm} {'over TCP' if transport == 'tcp' else 'within a host'}"
        contenders.append(Copies(stage.group(name, algorithm=algorithm, transport=transport), most, name))
        topologies[name] = {"algorithm": algorithm, "hosts": ranks}
    blocks: list[Block] = []
    for number in range(plan.rounds):
        for size in plan.sizes:
            stage.say(f"round {number + 1} of {plan.rounds}: {format_size(size)}")
            for contender in in_turn(contenders, number):
                blocks.append(turn(stage, contender, format_size(size), number, size // 4))
    return blocks, {"measured": topologies}


def measurements(turns: Sequence[Turn], facts: Mapping[str, Any]) -> list[Measurement]:
    """Give what was measured as the cost model takes it.

    Of the rounds the quickest counts: what else runs on the machine only ever adds time.
    """
    least: dict[tuple[str, str], float] = {}
    for taken in turns:
        key = taken.contender, taken.subject
        least[key] = min(least.get(key, math.inf), median(taken.seconds))
    found = []
    for (contender, subject), seconds in least.items():
        about = facts["measured"][contender]
        topology = Topology(0, tuple(tuple(ranks) for ranks in about["hosts"]))
        found.append(Measurement(about["algorithm"], parse_sizes(subject)[0], topology, seconds))
    return found


def fit(turns: Sequence[Turn], facts: Mapping[str, Any]) -> CostModel:
    """Fit the cost model to what was measured."""
    return CostModel.fit(measurements(turns, facts))
