"""The mesh itself, over links that a test moves by hand."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from hpsearch_comm.errors import CommError, CommTimeoutError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.transport.link import Combine, Link, Transfer
from hpsearch_comm.transport.mesh import Mesh
from tests.comm.transport.link_world import PATIENCE, SIGNATURE


class HandTransfer(Transfer):
    """Moves once for every push.

    Args:
        peer: The other rank.
        pushes: How many make it done.
        stream: What to poll for, if anything.
    """

    def __init__(self, peer: int, pushes: int, stream: socket.socket | None) -> None:
        self.peer = peer
        self.done = False
        self.tries = 0
        self.idle = threading.Event()
        self.fault: BaseException | None = None
        self._missing = pushes
        self._pushed = 0
        self._stream = stream

    def push(self) -> None:
        """Let it move once, as soon as it is tried."""
        self._pushed += 1

    def advance(self) -> bool:
        if self.fault is not None:
            raise self.fault
        self.tries += 1
        if not self._pushed:
            self.idle.set()
            return False
        self._pushed -= 1
        self._missing -= 1
        self.done = self._missing == 0
        return True

    def interest(self) -> Sequence[tuple[int, int]]:
        return () if self._stream is None else ((self._stream.fileno(), select.POLLIN),)


class HandLink(Link):
    """A link that returns the same transfer for every message."""

    def __init__(self, peer: int, pushes: int = 1, stream: socket.socket | None = None) -> None:
        self.peer = peer
        self.transfer = HandTransfer(peer, pushes, stream)
        self.closed = False

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        return self.transfer

    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        return self.transfer

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def abort_state() -> Iterator[AbortState]:
    abort_state = AbortState()
    yield abort_state
    abort_state.close()


@pytest.fixture
def stream() -> Iterator[socket.socket]:
    one, other = socket.socketpair()
    with one, other:
        yield one


def receive(mesh: Mesh, abort_state: AbortState, peers: Sequence[int] = (1,), timeout: float = PATIENCE) -> None:
    operation = Operation(0, SIGNATURE.pack(), timeout, abort_state)
    mesh.exchange(operation, [], [(peer, torch.zeros(1), None) for peer in peers])


class Receiving(threading.Thread):
    """An exchange in a thread of its own; `end` gives the error that ended it."""

    def __init__(self, mesh: Mesh, abort_state: AbortState, peers: Sequence[int] = (1,)) -> None:
        super().__init__()
        self._arguments = (mesh, abort_state, peers)
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            receive(*self._arguments)
        except BaseException as error:
            self._error = error

    def end(self) -> BaseException | None:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self._error


def test_waiting_takes_no_core_after_another_rank_has_left(abort_state: AbortState, stream: socket.socket) -> None:
    abort_state.mark_departed(7)
    link = HandLink(1, stream=stream)
    with pytest.raises(CommTimeoutError, match="rank 1"):
        receive(Mesh(0, {1: link}), abort_state, timeout=0.3)
    assert link.transfer.tries < 100


def test_what_is_in_flight_from_a_peer_that_has_left_is_waited_for(
    abort_state: AbortState, stream: socket.socket
) -> None:
    link = HandLink(1, pushes=3, stream=stream)
    abort_state.mark_departed(1)
    exchange = Receiving(Mesh(0, {1: link}), abort_state)
    for _ in range(3):
        for _ in range(2):
            assert link.transfer.idle.wait(PATIENCE)
            link.transfer.idle.clear()
        link.transfer.push()
    assert exchange.end() is None


def test_what_is_in_flight_is_waited_for_no_longer_than_the_deadline(
    abort_state: AbortState, stream: socket.socket
) -> None:
    abort_state.mark_departed(1)
    with pytest.raises(CommTimeoutError, match="rank 1"):
        receive(Mesh(0, {1: HandLink(1, stream=stream)}), abort_state, timeout=0.2)


def test_several_awaited_peers_are_named_once_each(abort_state: AbortState) -> None:
    links = {1: HandLink(1), 2: HandLink(2)}
    operation = Operation(0, SIGNATURE.pack(), 0.1, abort_state)
    with pytest.raises(CommTimeoutError, match="for rank 1 and rank 2 in allreduce 7"):
        Mesh(0, links).exchange(
            operation,
            [(1, torch.zeros(1)), (2, torch.zeros(1))],
            [(1, torch.zeros(1), None), (2, torch.zeros(1), None)],
        )


def test_a_long_wait_says_whom_it_waits_for_and_then_ever_more_rarely(
    abort_state: AbortState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("hpsearch_comm.failure.operation.time.monotonic", lambda: now)
    wait = Wait(Operation(0, SIGNATURE.pack(), 300.0, abort_state))

    def until(end: float) -> list[str]:
        nonlocal now
        caplog.clear()
        while now < end:
            wait.check([1, 2])
            now += 0.5
        return [record.getMessage().partition(" for rank 1 and rank 2 in allreduce 7 ")[0] for record in caplog.records]

    assert until(30.0) == []
    assert until(299.0) == [f"rank 0 has waited {seconds} s" for seconds in (30, 60, 120, 240)]
    assert "without any progress; it gives up after 300 s" in caplog.text
    wait.progressed()
    assert until(329.0) == []
    assert until(340.0) == ["rank 0 has waited 30 s"]
    now += 300
    with pytest.raises(CommTimeoutError):
        wait.check([1])


def test_an_interrupt_ends_the_group(abort_state: AbortState) -> None:
    link = HandLink(1)
    link.transfer.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        receive(Mesh(0, {1: link}), abort_state)
    with pytest.raises(CommError, match=r"rank 0 broke off allreduce 7 .*KeyboardInterrupt"):
        abort_state.check()


def test_closing_closes_the_links() -> None:
    links = {1: HandLink(1), 2: HandLink(2)}
    Mesh(0, links).close()
    assert links[1].closed
    assert links[2].closed
