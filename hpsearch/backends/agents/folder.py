"""The documents of a driver and its agents as files of a shared folder, each renamed into place.

agents/driver.json            what the driver announces
agents/<agent>.json           an agent's document
agents/<agent>.orders.json    the driver's document for the agent
agents/agents.json            the agents, for `hpsearch status`

There are no locks: each file has one writer, and a reader takes what is there. Files are opened anew each time, as a
network file system may show an old state of a file that stays open.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from hpsearch.backends.agents.desk import AgentRow
from hpsearch.backends.agents.http import Client
from hpsearch.backends.agents.messages import AgentState, Announcement, Orders, decode, encode
from hpsearch.trial import Segment

AGENTS = "agents"
"""Name of the folder."""

_DRIVER = "driver.json"
_ROWS = "agents.json"
_AGENT = re.compile(r"([0-9a-f]{32})\.json")
_LARGEST = 64 << 20
"""Bytes of the largest document that is read."""


def write_rows(study: Path, rows: Sequence[AgentRow]) -> None:
    """Write the agents of a study for `hpsearch status`, which is quicker without this package."""
    path = study / AGENTS / _ROWS
    if rows:
        _replace(path, json.dumps([asdict(row) for row in rows]).encode())
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    """Write a file beside its place, and rename it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.rename(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


class _File:
    """A file that another process replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    def read(self) -> bytes | None:
        """Return its content if it has changed since the last call; None: it hasn't, or there is none.

        Raises:
            OSError: It can't be read.
        """
        try:
            # Not through links, and not a pipe that nobody fills: others may write to the folder.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            if stamp == self._stamp:
                return None
            content = file.read(_LARGEST)
        self._stamp = stamp
        return content


class DriverFolder:
    """The driver's side of a shared folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        """Where agents find this driver."""
        self._folder = folder / AGENTS
        self._files: dict[str, _File] = {}
        self._written: dict[str, int] = {}

    def open(self, announcement: Announcement) -> None:
        """Delete what former drivers and agents left, and announce this driver. Agents that live write again.

        Raises:
            OSError: The folder can't be written.
        """
        self._clear()
        _replace(self._folder / _DRIVER, encode(announcement))

    def collect(self) -> tuple[list[AgentState], list[str]]:
        """Return the new documents of agents, and what is wrong with others.

        Raises:
            OSError: The folder can't be read.
        """
        states, mistakes = [], []
        for entry in os.listdir(self._folder):  # noqa: PTH208 (a Path for each entry costs more than the rest)
            match = _AGENT.fullmatch(entry)
            if match is None:
                continue
            path = self._folder / entry
            try:
                content = self._files.setdefault(match[1], _File(path)).read()
                if content is None:
                    continue
                state = decode(AgentState, content)
                if state.agent != match[1]:
                    raise ValueError(f"it must be of agent {match[1]}, got {state.agent}")
                states.append(state)
            except (OSError, ValueError) as error:
                mistakes.append(f"{path}: {error}")
        return states, mistakes

    def publish(self, orders: Mapping[str, Orders]) -> None:
        """Write the documents that are new.

        Raises:
            OSError: The folder can't be written.
        """
        for agent, document in orders.items():
            if self._written.get(agent) != document.counter:
                _replace(self._folder / f"{agent}.orders.json", encode(document))
                self._written[agent] = document.counter

    def forget(self, agent: str) -> None:
        """Forget an agent that has left; it deletes its files."""
        self._files.pop(agent, None)
        self._written.pop(agent, None)

    def close(self, announcement: Announcement, present: Collection[str]) -> None:
        """Announce that this driver has ended. Agents that are present read their orders later, and delete them."""
        _replace(self._folder / _DRIVER, encode(announcement))
        self._clear({_DRIVER, *(f"{agent}.orders.json" for agent in present)})

    def _clear(self, kept: Collection[str] = ()) -> None:
        for path in self._folder.iterdir():
            if path.name not in kept and path.suffix in (".json", ".part"):
                with suppress(OSError):
                    path.unlink()


class AgentFolder:
    """An agent's side of a shared folder.

    Args:
        folder: The folder.
        agent: Identifies the agent's process.
    """

    def __init__(self, folder: Path, agent: str) -> None:
        self.root = folder.absolute()
        """Where attempts are written."""
        self.scratch: Path | None = None
        self.client: Client | None = None
        self.where = str(folder)
        """For messages."""
        self._folder = self.root / AGENTS
        self._agent = agent
        self._driver = _File(self._folder / _DRIVER)
        self._orders = _File(self._folder / f"{agent}.orders.json")
        self._written = 0

    def announcement(self) -> bytes | None:
        """Return what a driver announces, if it is new.

        Raises:
            OSError: It can't be read.
        """
        return self._driver.read()

    def exchange(self, state: AgentState) -> Orders | None:
        """Write a document if it is new; return the orders if they are new.

        Raises:
            OSError: The folder can't be written or read.
            ValueError: These aren't orders.
        """
        if state.counter != self._written and self._folder.is_dir():
            _replace(self._folder / f"{self._agent}.json", encode(state))
            self._written = state.counter
        content = self._orders.read()
        return None if content is None else decode(Orders, content)

    def settle(self, segment: Segment) -> None:
        """Do nothing: the attempt's files are where they belong."""

    def close(self) -> None:
        """Delete this agent's documents."""
        for name in (f"{self._agent}.json", f"{self._agent}.orders.json"):
            with suppress(OSError):
                (self._folder / name).unlink()
