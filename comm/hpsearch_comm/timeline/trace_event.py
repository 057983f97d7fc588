"""The events of a trace, as JSON texts of Chrome's Trace Event Format.

Times are given in nanoseconds of this host's monotonic clock and written in microseconds. Most texts are formatted
without `json.dumps`, which would take three times as long.

Rates of a collective are defined as in nccl-tests, so that they can be compared with other libraries. With S the bytes
of the operation and t its seconds:

    algbw = S / t              the rate that the caller sees
    busbw = algbw · factor     the rate of each rank's bus under an optimal algorithm

The factor makes rates for different numbers of ranks n comparable. In an allreduce of S bytes, for example, each rank
must send its contribution to (n - 1)/n of the elements, and the results of its own 1/n of them to n - 1 ranks. These
are 2 S (n - 1)/n bytes, so the factor is 2 (n - 1)/n. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    operation                       S                                  factor
    allreduce                       the tensor                         2 (n - 1)/n
    allgather, reduce_scatter       the parts of all ranks             (n - 1)/n
    alltoall                        the tensor that one rank sends     (n - 1)/n
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
    """Return busbw / algbw of an operation among `size` ranks; 1 if nccl-tests defines no factor."""
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in _SHARED:
        return (size - 1) / size
    return 1.0


def algorithm_bandwidth(nbytes: int, seconds: float) -> float:
    """Return algbw in GB/s (10⁹ bytes per second); 0 if `seconds` is 0."""
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def bus_bandwidth(operation: str, nbytes: int, seconds: float, size: int) -> float:
    """Return busbw in GB/s (10⁹ bytes per second)."""
    return algorithm_bandwidth(nbytes, seconds) * bus_factor(operation, size)


PART, CLOCK = "part", "clock"
"""Names of the metadata events that are needed to merge parts."""


def metadata_event(rank: int, name: str, values: Mapping[str, Any], thread: int = 0) -> str:
    """Return a metadata event of a rank, or of one of its rows.

    Args:
        rank: The rank.
        name: `PART` has the group's `size`. `CLOCK` has the `nanoseconds` to add to this part's times to get rank 0's
            clock, and the `start` of the comparison of clocks. Other names are defined by the format: `process_name`,
            `thread_name`, `process_sort_index`, `process_labels`.
        values: The event's `args`.
        thread: The row.
    """
    return json.dumps({"name": name, "ph": "M", "pid": rank, "tid": thread, "args": values})


def span_event(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> str:
    """Return the event of a phase or a backward pass."""
    return f"{_span(rank, thread, name, category, begin, end)}}}"


@dataclass(slots=True)
class Ran:
    """The description of an operation."""

    name: str
    """allreduce, broadcast, ..."""
    nbytes: int
    """Bytes of the operation: S above."""
    algorithm: str
    sequence: int
    """The operation's number in its group."""
    queued: int
    """When an asynchronous operation was called; 0 for a blocking one."""
    group: str
    """The group's name."""
    begin: int = field(init=False)


def operation_event(rank: int, thread: int, operation: Ran, end: int, hidden: int, failure: str, size: int) -> str:
    """Return the event of an operation.

    Args:
        rank: The rank.
        thread: The row.
        operation: The operation.
        end: When the operation ended.
        hidden: Nanoseconds of the operation within backward passes.
        failure: Name of the error's class; empty without an error.
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
    """Return the event of a rank's totals, an instant event at its end."""
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
