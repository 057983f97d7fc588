"""The lines of a trace: JSON texts of Chrome's Trace Event Format.

Times come in nanoseconds of this host's monotonic clock and go out in microseconds of it. The texts are put together by
hand: that takes a third of the time of `json.dumps`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hpsearch_comm.timeline.bandwidth import algorithm_bandwidth, bus_bandwidth

__all__ = [
    "CLOCK",
    "PART",
    "Ran",
    "metadata_event",
    "operation_event",
    "span_event",
    "summary_event",
]


PART, CLOCK = "part", "clock"
"""Names of the events that say of a part what a trace of all ranks needs."""


def metadata_event(rank: int, what: str, told: Mapping[str, Any], thread: int = 0) -> str:
    """Say something of a rank, or of a row of it.

    Args:
        rank: The rank.
        what: `PART` tells the group's `size`; `CLOCK` the `nanoseconds` to add to this part's times to have them on
            rank 0's clock, and the `start` of the run; the others are the format's own: `process_name`, `thread_name`,
            `process_sort_index`, `process_labels`.
        told: What is said.
        thread: The row.
    """
    return json.dumps({"name": what, "ph": "M", "pid": rank, "tid": thread, "args": told})


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
