"""The agents of all hosts, as the launcher's loop sees them."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO

from hpsearch_comm.launch.connection import Connection
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import Frame
from hpsearch_comm.launch.hosts import HostRanks

__all__ = ["LAST_SECONDS", "Fleet"]

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
LAST_SECONDS = 60.0
"""For agents to clear up at the end: longer than what they wait for themselves."""


class Fleet:
    """Opens connections to agents, and waits for what they say.

    Args:
        on_frame: Is given each frame, with its connection.
        on_disconnect: Is given a connection from which nothing more comes.
        log: Is given what ssh, or an agent, says beside.
    """

    def __init__(
        self,
        on_frame: Callable[[Connection, Frame], None],
        on_disconnect: Callable[[Connection], None],
        log: Callable[[str], None],
    ) -> None:
        self.connections: list[Connection] = []
        self.selector = selectors.PollSelector()  # unlike others, it takes files, such as standard input may be
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._log = log

    def open(self, host_ranks: HostRanks, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start an agent.

        Raises:
            LaunchError: The command can't be run.
        """
        try:
            connection = Connection(host_ranks, command, environment)
        except OSError as error:
            raise LaunchError(
                f"expected to be able to run {command[0]} on this host, got: {error.strerror or error}. Install it"
                + (", or name another Python (--python)" if "ssh" not in command[0] else "")
            ) from None
        self.connections.append(connection)
        self.selector.register(connection.error, _READ, partial(self._read_error, connection))

    @property
    def is_open(self) -> bool:
        """Whether more may come from any agent."""
        return any(connection.is_open for connection in self.connections)

    def step(self, seconds: float, receive: bool) -> None:
        """Wait for something to happen, for so many seconds, and deal with it.

        Args:
            seconds: How long.
            receive: Whether agents are heard, or wait until there is room for what they say.
        """
        for connection in self.connections:
            if connection.is_open:
                self._watch(connection.output, receive, _READ, partial(self._receive, connection))
                self._watch(connection.input, connection.is_sending, _WRITE, connection.flush)
        for key, _ in self.selector.select(seconds):
            key.data()

    def broadcast(self, message: bytes) -> None:
        """Send a frame to every agent that is there."""
        for connection in self.connections:
            if connection.is_open and connection.greeting is not None:
                connection.send(message)

    def kill(self) -> None:
        """Wait no longer for the agents that haven't ended."""
        for connection in self.connections:
            if connection.is_open:
                connection.process.kill()

    def close(self) -> None:
        """Close all agents, which end what still runs, and wait for them."""
        for connection in self.connections:
            connection.close_input()
            if connection.greeting is None:
                connection.process.kill()  # ssh may wait for a host that doesn't answer
        deadline = time.monotonic() + LAST_SECONDS
        for connection in self.connections:
            while connection.process.poll() is None and time.monotonic() < deadline:
                # An agent that has much to say must not wait for this process.
                with contextlib.suppress(LaunchError):
                    connection.read()
                connection.read_error()
                time.sleep(0.01)
            connection.close()
        self.selector.close()

    def _watch(self, stream: IO[bytes], enabled: bool, events: int, action: Callable[[], None]) -> None:
        watched = stream in self.selector.get_map()
        if enabled and not watched:
            self.selector.register(stream, events, action)
        elif watched and not enabled:
            self.selector.unregister(stream)

    def _receive(self, connection: Connection) -> None:
        for frame in connection.read():
            self._on_frame(connection, frame)
        if not connection.is_open:
            for stream in (connection.output, connection.input):
                with contextlib.suppress(KeyError):
                    self.selector.unregister(stream)
            connection.read_error()  # what ssh or the agent has to say of it
            self._on_disconnect(connection)

    def _read_error(self, connection: Connection) -> None:
        before = connection.diagnostics
        if not connection.read_error():
            self.selector.unregister(connection.error)
        elif connection.diagnostics != before:
            self._log(f"{connection.name}: {connection.diagnostics.strip().splitlines()[-1]}")
