"""Merges the parts of several ranks into one trace, on the clock of rank 0."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.timeline.part_file import create_private, scratch_beside
from hpsearch_comm.timeline.trace_event import CLOCK, PART

_MOST_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    rank: int
    size: int
    """Number of ranks in the group."""
    clock: tuple[int, int] | None
    """Nanoseconds to add to get rank 0's clock, and when clocks were compared; None if the rank ended before that."""


def merge(target: Path, paths: Sequence[Path]) -> list[int]:
    """Write one trace from the parts of a group's ranks. An existing file is replaced when the trace is complete.

    Args:
        target: The file to write; only its user can read it.
        paths: The parts, in any order.

    Returns:
        The ranks of the group whose parts are missing.

    Raises:
        ConfigurationError: A file isn't a part, or the parts aren't from the same run.
        OSError: A file can't be read or written.
    """
    if target.is_file() and _begins_a_part(target):
        raise ConfigurationError(f"the first path must be that of the trace to write, got a rank's part: {target}")
    parts = sorted(map(_read, paths), key=lambda part: part.rank)
    _check(parts)
    scratch = scratch_beside(target)
    file = create_private(scratch)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as trace:
            begin = '{"displayTimeUnit": "ms", "traceEvents": [\n'
            for event in itertools.chain.from_iterable(map(_on_one_clock, parts)):
                trace.write(begin + event)
                begin = ",\n"
            trace.write("\n]}\n")
        scratch.replace(target)
    except BaseException:
        scratch.unlink()
        raise
    return sorted(set(range(parts[0].size)) - {part.rank for part in parts})


def _begins_a_part(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"["


def _read(path: Path) -> _Part:
    events = _events(path)
    first = next(events, {})
    try:
        if first["name"] != PART:
            raise KeyError(PART)
        rank, size = int(first["pid"]), int(first["args"]["size"])
        # Other events may have this name too, but only this one is metadata.
        clocks = (event for event in events if (event["name"], event["ph"]) == (CLOCK, "M"))
        values = [(int(clock["args"]["nanoseconds"]), int(clock["args"]["start"])) for clock in clocks]
        if not 0 <= rank < size <= _MOST_RANKS:
            raise ValueError(rank)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{path} must be the part of a rank, as a timeline writes it") from None
    return _Part(path, rank, size, values[0] if values else None)


def _check(parts: Sequence[_Part]) -> None:
    for part, other in itertools.pairwise(parts):
        if part.rank == other.rank:
            raise ConfigurationError(
                f"a rank must have one part, got two of rank {part.rank}: {part.path}, {other.path}"
            )
        if part.clock is None or other.clock is None:
            late = part if part.clock is None else other
            raise ConfigurationError(
                f"{late.path} can't be merged with the others: rank {late.rank} ended before the ranks had compared "
                "their clocks. Leave it out, or load it by itself"
            )
        if (part.size, part.clock[1]) != (other.size, other.clock[1]):
            raise ConfigurationError(
                f"the parts must be those of one run, got others in {part.path} and {other.path}: one was left by an "
                "earlier run"
            )


def _on_one_clock(part: _Part) -> Iterator[str]:
    """Yield the JSON texts of a part's events, with times on rank 0's clock."""
    for event in _events(part.path):
        try:
            if "ts" in event:
                event["ts"] = round(event["ts"] + (part.clock[0] if part.clock else 0) / 1e3, 3)
            yield json.dumps(event, allow_nan=False)
        except (TypeError, ValueError, OverflowError):
            raise ConfigurationError(
                f"{part.path} must have events with finite numbers, as a timeline writes them, got {event!r:.100}"
            ) from None


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete events of a part. If the rank was killed, the last line may be incomplete."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip().rstrip(",")
            if text in ("[", "]") or not line.endswith("\n"):
                continue
            try:
                event = json.loads(text)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict):
                raise ConfigurationError(
                    f"{path} must have an event on each line, as a timeline writes it; line {number} is {text[:80]!r}"
                )
            yield event
