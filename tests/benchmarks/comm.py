"""The collective layer: allreduce beside Gloo and Open MPI, bare memory, TCP between two namespaces, training steps.

`python -m tests.benchmarks.collectives` measures one of these at a time, with more to choose.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from statistics import median

from hpsearch_comm.errors import ConfigurationError
from tests.benchmarks.collectives.bare_memory import BARE
from tests.benchmarks.collectives.block import MeasuredTurn
from tests.benchmarks.collectives.contenders import require
from tests.benchmarks.collectives.launch import measure as run
from tests.benchmarks.collectives.plan import Plan
from tests.benchmarks.collectives.report import geometric_mean
from tests.benchmarks.collectives.training import (
    DDP_OVER_GLOO,
    DDP_OVER_OURS,
    FSDP_OVER_GLOO,
    FSDP_OVER_OURS,
    NO_AVERAGING,
)
from tests.benchmarks.figures import Figure

_COPIES, _ZERO_COPY = "ours", "ours, zero-copy"
_LARGE = ("1M", "16M", "64M")
_SIZES = ("1K", "64K", *_LARGE)

_TWO_RANKS = {"1K": 12, "64K": 8, "1M": 4, "16M": 3, "64M": 3}
_FOUR_RANKS = {"1K": 10, "64K": 10, "1M": 10, "16M": 4, "64M": 4}
"""How many times as fast as Gloo allreduce is to be, with copies."""

_STEPS = {"wide": 0.85, "deep, narrow": 0.85, "convnet": 1.0}
"""How long a step of DistributedDataParallel over ours is to take at most, beside one over Gloo."""


def measure(rounds: int) -> list[Figure]:
    """Run ours and the peers in turns, in the same processes."""
    peers = ("gloo", "mpi") if _has_mpi() else ("gloo",)
    figures: list[Figure] = []
    for ranks, targets in ((2, _TWO_RANKS), (4, _FOUR_RANKS)):
        turns = run(Plan(ranks=ranks, against=peers, rounds=rounds)).turns
        what = f"allreduce, {ranks} ranks"
        for size in _SIZES:
            target = f"ratio at most {1 / targets[size]:.3g}"
            figures.append(_figure(f"{what}, {size}", turns, [size], _COPIES, "gloo", target))
            target = "ratio at most 0.167" if ranks == 2 and size in ("16M", "64M") else ""
            figures.append(_figure(f"{what}, {size}, zero-copy", turns, [size], _ZERO_COPY, "gloo", target))
        if "mpi" in peers:
            copies, zero_copy = ("ratio at most 1.11", "ratio at most 0.5") if ranks == 2 else ("", "")
            mean = f"{what}, mean of {', '.join(_LARGE)}"
            figures.append(_figure(mean, turns, _LARGE, _COPIES, "mpi", copies))
            figures.append(_figure(f"{mean}, zero-copy", turns, _LARGE, _ZERO_COPY, "mpi", zero_copy))
    turns = run(Plan(kind="memory", against=(), rounds=rounds)).turns
    figures.append(_figure("allreduce, 2 ranks, 64M, zero-copy", turns, ["64M"], _ZERO_COPY, BARE, "ratio at most 1.5"))
    if os.geteuid() == 0:
        turns = run(Plan(transport="tcp", namespaces=True, rounds=rounds)).turns
        mean = f"TCP between two namespaces, mean of {', '.join(_SIZES)}"
        figures.append(_figure(mean, turns, _SIZES, _COPIES, "gloo", "ratio at most 0.667"))
        figures.append(_figure("... 64M", turns, ["64M"], _COPIES, "gloo", "ratio at most 0.833"))
    else:
        print("TCP between two namespaces is left out: it needs root", file=sys.stderr)
    return figures + _training(rounds, 2) + _training(rounds, 4)


def _training(rounds: int, ranks: int) -> list[Figure]:
    outcome = run(Plan(kind="model", ranks=ranks, rounds=rounds))
    steps, what = outcome.facts["steps"], f"model, {ranks} ranks"

    def milliseconds(model: str, name: str) -> list[float]:
        return [1e3 * seconds / steps for seconds in _by_round(outcome.turns, [model], name)]

    figures = []
    for model in outcome.facts["parameters"]:
        without = milliseconds(model, NO_AVERAGING)
        for name, target in ((_COPIES, "ratio at least 0.85" if ranks == 2 else ""), (DDP_OVER_GLOO, "")):
            averaging = milliseconds(model, name)
            figures.append(Figure(f"a step without averaging, {model} {what}", "ms", without, target, name, averaging))
        ours, gloos = milliseconds(model, DDP_OVER_OURS), milliseconds(model, DDP_OVER_GLOO)
        target = f"ratio at most {_STEPS[model]}"
        figures.append(Figure(f"a step of DDP over ours, {model} {what}", "ms", ours, target, DDP_OVER_GLOO, gloos))
        ours, gloos = milliseconds(model, FSDP_OVER_OURS), milliseconds(model, FSDP_OVER_GLOO)
        figures.append(Figure(f"a step of FSDP2 over ours, {model} {what}", "ms", ours, "", FSDP_OVER_GLOO, gloos))
    return figures


def _figure(
    name: str, turns: Sequence[MeasuredTurn], sizes: Sequence[str], ours: str, peer: str, target: str
) -> Figure:
    mine, theirs = ([1e6 * seconds for seconds in _by_round(turns, sizes, who)] for who in (ours, peer))
    return Figure(name, "µs", mine, target, peer, theirs)


def _by_round(turns: Sequence[MeasuredTurn], subjects: Sequence[str], contender: str) -> list[float]:
    """Return a contender's median time in each round: the geometric mean of these if there are several sizes."""
    rounds = sorted({turn.round for turn in turns})
    chosen = [turn for turn in turns if turn.contender == contender and turn.subject in subjects]
    return [geometric_mean(median(turn.seconds) for turn in chosen if turn.round == number) for number in rounds]


def _has_mpi() -> bool:
    try:
        require("mpi")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return False
    return True
