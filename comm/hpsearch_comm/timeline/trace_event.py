"""The lines of a trace: JSON texts of Chrome's Trace Event Format.

Times come in nanoseconds of this host's monotonic clock and go out in microseconds of it. The texts are put together by
hand: that takes a third of the time of `json.dumps`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from hpsearch_comm.timeline.bandwidth import algorithm_bandwidth, bus_bandwidth

__all__ = [
    "CLOCK",
    "PART",
    "clock_event",
    "counter_event",
    "label_event",
    "name_event",
    "operation_event",
    "order_event",
    "part_event",
    "span_event",
    "summary_event",
]


PART, CLOCK = "part", "clock"
"""Names of the events that say of a part what a trace of all ranks needs."""


def part_event(rank: int, size: int) -> str:
    """Say whose part this is, and of how many ranks."""
    return json.dumps({"name": PART, "ph": "M", "pid": rank, "args": {"size": size}})


def clock_event(rank: int, offset: int, start: int) -> str:
    """Say how many nanoseconds to add to this part's times to have them on rank 0's clock, and when that was found."""
    return json.dumps({"name": CLOCK, "ph": "M", "pid": rank, "args": {"nanoseconds": offset, "start": start}})


def name_event(rank: int, what: str, thread: int, name: str) -> str:
    """Name a rank (`process_name`) or a row of it (`thread_name`)."""
    return json.dumps({"name": what, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})


def order_event(rank: int) -> str:
    """Have the viewer show the ranks in order."""
    return json.dumps({"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}})


def span_event(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> str:
    """Give a phase or a backward pass."""
    return f"{_span(rank, thread, name, category, begin, end)}}}"


class Ran(Protocol):
    """An operation that has run, as `operation_event` reads it."""

    name: str
    nbytes: int
    algorithm: str
    sequence: int
    queued: int
    group: str
    begin: int


def operation_event(rank: int, thread: int, operation: Ran, end: int, hidden: int, failure: str, size: int) -> str:
    """Give an operation.

    Args:
        rank: Where it ran.
        thread: The row.
        operation: What ran, and since when; its `queued` is 0 if it was a blocking one.
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


def counter_event(rank: int, name: str, at: int, values: Mapping[str, float]) -> str:
    """Give values at one moment; those that JSON can't hold are left out."""
    finite = {key: value for key, value in values.items() if math.isfinite(value)}
    return (
        f'{{"name": {_quoted(name)}, "cat": "counter", "ph": "C", "ts": {at / 1e3:.3f}, '
        f'"pid": {rank}, "args": {json.dumps(finite)}}}'
    )


def summary_event(rank: int, thread: int, at: int, totals: Mapping[str, Any]) -> str:
    """Give a rank's totals, as a mark at its end."""
    return (
        f'{{"name": "summary", "cat": "summary", "ph": "i", "s": "p", "ts": {at / 1e3:.3f}, '
        f'"pid": {rank}, "tid": {thread}, "args": {json.dumps(totals)}}}'
    )


def label_event(rank: int, label: str) -> str:
    """Have the viewer show a few words beside the rank's name."""
    return json.dumps({"name": "process_labels", "ph": "M", "pid": rank, "args": {"labels": label}})


def _span(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> str:
    return (
        f'{{"name": {_quoted(name)}, "cat": "{category}", "ph": "X", "ts": {begin / 1e3:.3f}, '
        f'"dur": {(end - begin) / 1e3:.3f}, "pid": {rank}, "tid": {thread}'
    )


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return json.dumps(text)
