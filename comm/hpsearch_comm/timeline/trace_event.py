"""The lines of a trace: JSON texts of Chrome's Trace Event Format.

Times come in nanoseconds of this host's monotonic clock and go out in microseconds of it. The texts are put together by
hand: that takes a third of the time of `json.dumps`.

Rates of a collective are those of nccl-tests, so that figures can be put beside anybody else's. With S the bytes of the
operation and t its seconds:

    algbw = S / t              what the caller sees
    busbw = algbw · factor     what each rank's bus would carry under the best algorithm there is

The factor makes rates of different numbers of ranks n comparable. In an allreduce of S bytes, for instance, each rank
must send its contribution to (n - 1)/n of the elements and the results of its own 1/n of them to n - 1 ranks:
2 S (n - 1)/n bytes, hence 2 (n - 1)/n. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    operation                       S                                  factor
    allreduce                       the tensor                         2 (n - 1)/n
    allgather, reduce_scatter       all parts together                 (n - 1)/n
    alltoall                        what one rank sends                (n - 1)/n
    broadcast                       the tensor                         1
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_SHARED = frozenset({"allgather", "reduce_scatter", "alltoall"})


def bus_factor(operation: str, size: int) -> float:
    """Return busbw / algbw of an operation among `size` ranks; 1 for operations that have no such convention."""
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in _SHARED:
        return (size - 1) / size
    return 1.0


def algorithm_bandwidth(nbytes: int, seconds: float) -> float:
    """Return algbw in GB/s (10⁹ bytes per second); 0 where no time has passed."""
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def bus_bandwidth(operation: str, nbytes: int, seconds: float, size: int) -> float:
    """Return busbw in GB/s (10⁹ bytes per second)."""
    return algorithm_bandwidth(nbytes, seconds) * bus_factor(operation, size)


PART, CLOCK = "part", "clock"
"""Names of the events that say of a part what a trace of all ranks needs."""


def metadata_event(rank: int, name: str, values: Mapping[str, Any], thread: int = 0) -> str:
    """Say something of a rank, or of a row of it.

    Args:
        rank: The rank.
        name: `PART` tells the group's `size`; `CLOCK` the `nanoseconds` to add to this part's times to have them on
            rank 0's clock, and the `start` of the run; the others are the format's own: `process_name`, `thread_name`,
            `process_sort_index`, `process_labels`.
        values: What is said.
        thread: The row.
    """
    return json.dumps({"name": name, "ph": "M", "pid": rank, "tid": thread, "args": values})


def span_event(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> str:
    """Add a phase or a backward pass."""
    return f"{_span(rank, thread, name, category, begin, end)}}}"


@dataclass(slots=True)
class Ran:
    """An operation that has run."""

    name: str
    """allreduce, broadcast, ..."""
    nbytes: int
    """S of `bandwidth`."""
    algorithm: str
    sequence: int
    """The operation's number in its group."""
    queued: int
    """When an asynchronous operation was called; 0 for a blocking one."""
    group: str
    """The group's name."""
    begin: int = field(init=False)


def operation_event(rank: int, thread: int, operation: Ran, end: int, hidden: int, failure: str, size: int) -> str:
    """Add an operation.

    Args:
        rank: Where it ran.
        thread: The row.
        operation: What ran.
        end: When it was done.
        hidden: Nanoseconds within the backward pass.
        failure: The error's class; empty where there was none.
        size: The number of ranks.
    """
    name, nbytes, begin, queued = operation.name, operation.nbytes, operation.begin, operation.queued
    seconds = (end - begin) / 1e9
    text = (
        f'{_span(rank, thread, name, "operation", begin, end)}, "args": {{"sequence": {operation.sequence}, '
        f'"bytes": {nbytes}, "algorithm": {_quoted(operation.algorithm)}, '
        f'"algbw GB/s": {algorithm_bandwidth(nbytes, seconds):.3f}, '
        f'"busbw GB/s": {bus_bandwidth(name, nbytes, seconds, size):.3f}, '
        f'"asynchronous": {"true" if queued else "false"}'
    )
    if operation.group:
        text += f', "group": {_quoted(operation.group)}'
    if queued:
        text += f', "queued us": {(begin - queued) / 1e3:.3f}, "hidden us": {hidden / 1e3:.3f}'
        text += f', "hidden share": {hidden / (end - begin) if end > begin else 0:.3f}'
    if failure:
        text += f', "error": {_quoted(failure)}'
    return text + "}}"


def summary_event(rank: int, thread: int, at: int, totals: Mapping[str, Any]) -> str:
    """Return a rank's totals, as a mark at its end."""
    return (
        f'{{"name": "summary", "cat": "summary", "ph": "i", "s": "p", "ts": {at / 1e3:.3f}, '
        f'"pid": {rank}, "tid": {thread}, "args": {json.dumps(totals)}}}'
    )


def _span(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> str:
    return (
        f'{{"name": {_quoted(name)}, "cat": "{category}", "ph": "X", "ts": {begin / 1e3:.3f}, '
        f'"dur": {(end - begin) / 1e3:.3f}, "pid": {rank}, "tid": {thread}'
    )


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return json.dumps(text)
