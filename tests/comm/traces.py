"""Reads traces, and stands in for the group over which timelines exchange their parts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    if text.startswith("[") and not text.rstrip().endswith("]"):  # as Chrome's viewer does
        text = text.rstrip().rstrip(",") + "]"
    events = json.loads(text)
    return events if isinstance(events, list) else events["traceEvents"]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


class Exchanging:
    """A group of ranks that are threads, as far as a timeline needs one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._meeting = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def rank(self, rank: int) -> ExchangingRank:
        return ExchangingRank(self, rank)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = json.loads(json.dumps(value))
        self._meeting.wait(30)
        everyone = list(self._values)
        self._meeting.wait(30)
        return everyone

    def run(self, work: Callable[[int], None]) -> None:
        failures: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                work(rank)
            except BaseException as error:
                failures.append(error)
                self._meeting.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if failures:
            raise failures[0]


class ExchangingRank:
    def __init__(self, group: Exchanging, rank: int) -> None:
        self._group = group
        self._rank = rank

    def allgather_object(self, value: Any) -> list[Any]:
        return self._group.exchange(self._rank, value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return self._group.exchange(self._rank, value)[root]
