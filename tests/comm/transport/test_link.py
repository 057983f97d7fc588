"""A link against a peer that a test plays by hand: what may come over a socket, and how a socket may end."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.errors import CommError, CommTimeoutError, MismatchError, PeerLost
from hpsearch_comm.failure import abort as fate_module
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import HEADER_BYTES
from hpsearch_comm.transport.link import Link
from hpsearch_comm.transport.mesh import Mesh
from tests.comm.transport.link_world import PATIENCE, SIGNATURE, connected_pair

STREAMS = 3
LARGE = 5_000_001
"""Elements of a message that takes all streams."""


@dataclass
class Bench:
    """Rank 0 with a link to rank 1, of which there is only the other end of each stream."""

    mesh: Mesh
    abort_state: AbortState
    peer: list[socket.socket]

    def operation(self, timeout: float = PATIENCE) -> Operation:
        return Operation(0, SIGNATURE.pack(), timeout, self.abort_state)

    def receive(self, numel: int, timeout: float = PATIENCE) -> torch.Tensor:
        received = torch.zeros(numel)
        self.mesh.exchange(self.operation(timeout), [], [(1, received, None)])
        return received

    def fold(self, numel: int, timeout: float = PATIENCE) -> torch.Tensor:
        received = torch.zeros(numel)
        self.mesh.exchange(self.operation(timeout), [], [(1, received, lambda mine, theirs: mine.add_(theirs))])
        return received

    def send(self, numel: int, timeout: float = PATIENCE) -> None:
        self.mesh.exchange(self.operation(timeout), [(1, torch.ones(numel))], [])

    def keep_sending(self, numel: int) -> None:
        """Send until it fails: the kernel takes some before it hears that the peer is gone."""
        for _ in range(10_000):
            self.send(numel)

    def hang_up(self) -> None:
        for stream in self.peer:
            stream.close()


def new_bench() -> Bench:
    pairs = [connected_pair() for _ in range(STREAMS)]
    return Bench(Mesh(0, {1: Link(1, [pair[0] for pair in pairs])}), AbortState(), [pair[1] for pair in pairs])


def put_away(bench: Bench) -> None:
    bench.mesh.close()
    bench.abort_state.close()
    bench.hang_up()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = new_bench()
    yield bench
    put_away(bench)


def message(numel: int) -> bytes:
    """Return the bytes of a small message as the peer would send it."""
    content = bytes(range(256)) * (numel // 64 + 1)
    return Operation(1, SIGNATURE.pack(), 1.0, None).header(4 * numel) + content[: 4 * numel]  # type: ignore[arg-type]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def reset(stream: socket.socket) -> None:
    """Close with RST instead of FIN."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("numel", [0, 1, 100])
def test_a_message_may_come_byte_by_byte(bench: Bench, numel: int, folded: bool) -> None:
    def trickle() -> None:
        for byte in message(numel):
            bench.peer[0].send(bytes([byte]))

    peer = threading.Thread(target=trickle)
    peer.start()
    received = bench.fold(numel) if folded else bench.receive(numel)
    peer.join()
    # Added to zero: the same numbers, whatever their bits.
    expected = torch.frombuffer(bytearray(message(numel) + bytes(4))[HEADER_BYTES:], dtype=torch.float32)[:numel]
    assert torch.equal(received.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("first", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 7])
def test_a_message_may_come_in_two_parts(bench: Bench, first: int) -> None:
    whole = message(50)
    bench.peer[0].send(whole[:first])
    rest = threading.Timer(0.05, lambda: bench.peer[0].send(whole[first:]))
    rest.start()
    assert bits(bench.receive(50)) == whole[HEADER_BYTES:]
    rest.join()


def test_two_messages_may_come_in_one_part(bench: Bench) -> None:
    bench.peer[0].send(message(50) + message(3))
    assert bits(bench.receive(50)) == message(50)[HEADER_BYTES:]
    assert bits(bench.receive(3)) == message(3)[HEADER_BYTES:]


@pytest.mark.parametrize("numel", [50, LARGE])
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("sent", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3])
def test_a_stream_that_ends_in_a_message_names_the_peer(bench: Bench, sent: int, end: str, numel: int) -> None:
    bench.peer[0].send(message(numel)[:sent])
    reset(bench.peer[0]) if end == "reset" else bench.peer[0].close()
    with pytest.raises(PeerLost, match=r"rank 0 lost its connection to rank 1 in allreduce 7 \(") as e:
        bench.receive(numel)
    assert e.value.rank == 1
    assert bench.abort_state.error is e.value


def test_any_stream_of_a_large_message_may_end(bench: Bench) -> None:
    bench.peer[0].send(message(LARGE)[: HEADER_BYTES + 1000])
    bench.peer[2].close()
    with pytest.raises(PeerLost, match="rank 1"):
        bench.fold(LARGE)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_sending_to_a_peer_that_is_gone_names_it(bench: Bench, end: str) -> None:
    for stream in bench.peer:
        reset(stream) if end == "reset" else stream.close()
    with pytest.raises(PeerLost, match="rank 0 lost its connection to rank 1"):
        bench.keep_sending(LARGE)


def test_writing_to_a_closed_stream_doesnt_kill_a_process_that_resets_sigpipe(bench: Bench) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        bench.hang_up()
        for numel in (1, LARGE):
            with pytest.raises(PeerLost):
                bench.keep_sending(numel)
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("numel", [50, LARGE])
def test_a_peer_that_stops_in_the_middle_is_waited_for_until_the_deadline(bench: Bench, numel: int) -> None:
    bench.peer[0].send(message(numel)[: HEADER_BYTES + 10])
    with pytest.raises(CommTimeoutError, match=r"rank 0 waited \d+\.\d s for rank 1 in allreduce 7"):
        bench.receive(numel, timeout=0.2)


def test_the_groups_word_on_a_lost_peer_comes_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_module, "_VERDICT", PATIENCE)
    threading.Timer(0.05, lambda: bench.abort_state.fail(PeerLost("rank 5 has died, so rank 1 gave up", 5))).start()
    bench.hang_up()
    with pytest.raises(PeerLost, match="rank 5 has died") as e:
        bench.receive(10)
    assert e.value.rank == 5


def test_a_peer_that_says_goodbye_while_it_is_needed_has_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_module, "_VERDICT", PATIENCE)
    threading.Timer(0.05, lambda: bench.abort_state.mark_departed(1)).start()
    bench.hang_up()
    with pytest.raises(PeerLost, match="rank 1 has closed the group while this rank still needs it"):
        bench.receive(10)


def test_what_a_peer_said_before_it_hung_up_is_heard_though_sending_fails(bench: Bench) -> None:
    other = replace(SIGNATURE, shape=(9,))
    bench.peer[0].send(Operation(1, other.pack(), 1.0, bench.abort_state).header(36))
    for stream in bench.peer:
        reset(stream)
    received = torch.zeros(LARGE)
    with pytest.raises(MismatchError, match=r"rank 1 calls allreduce 7 \(sum of float32 \[9\]"):
        bench.mesh.exchange(bench.operation(), [(1, torch.ones(LARGE))], [(1, received, None)])
    assert not received.any()


def test_streams_wait_for_the_header_of_their_message(bench: Bench) -> None:
    # The other streams carry no header: nothing of theirs may be used before the first has shown that it is for us.
    for stream in bench.peer[1:]:
        stream.send(b"\x01" * 1000)
    bench.peer[0].send(Operation(1, replace(SIGNATURE, sequence=8).pack(), 1.0, bench.abort_state).header(4 * LARGE))
    received = torch.zeros(LARGE)
    with pytest.raises(MismatchError, match="rank 1 calls allreduce 8"):
        bench.mesh.exchange(bench.operation(), [], [(1, received, None)])
    assert not received.any()


@pytest.mark.parametrize("numel", [0, 50, LARGE])
@given(junk=st.binary(min_size=HEADER_BYTES, max_size=1000))
@settings(max_examples=25, deadline=None)
def test_bytes_that_are_no_message_are_told_apart(numel: int, junk: bytes) -> None:
    bench = new_bench()
    try:
        for stream in bench.peer:
            stream.send(junk)
        with pytest.raises(MismatchError, match="rank 1") as e:
            bench.receive(numel)
        assert bench.abort_state.error is e.value
    finally:
        put_away(bench)


@given(place=st.integers(0, HEADER_BYTES - 1), change=st.integers(1, 255), hang_up=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_header_with_one_wrong_byte_is_told_apart(place: int, change: int, hang_up: bool) -> None:
    bench = new_bench()
    try:
        wrong = bytearray(message(50))
        wrong[place] ^= change
        bench.peer[0].send(wrong)
        if hang_up:
            bench.hang_up()
        with pytest.raises(MismatchError, match="rank 1"):
            bench.receive(50)
    finally:
        put_away(bench)


@given(junk=st.binary(max_size=HEADER_BYTES - 1))
@settings(max_examples=20, deadline=None)
def test_fewer_bytes_than_a_header_end_by_the_deadline(junk: bytes) -> None:
    bench = new_bench()
    try:
        bench.peer[0].send(junk)
        with pytest.raises(CommError, match="rank 1"):
            bench.fold(50, timeout=0.02)
    finally:
        put_away(bench)


STUCK_PEER = """
import signal, socket, sys
streams = [socket.socket(fileno=int(number)) for number in sys.argv[2:]]
rest = sys.stdin.buffer.read()
streams[0].sendall(rest)
if sys.argv[1] == "read":
    taken = 0
    while taken < 3_000_000:
        taken += len(streams[0].recv(1 << 16))
print("stuck", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("phase", "sent"),
    [("waits", 0), ("header", 60), ("payload", HEADER_BYTES + 70), ("large payload", HEADER_BYTES + 70), ("read", 0)],
)
def test_a_process_killed_in_any_phase_is_lost(phase: str, sent: int) -> None:
    bench = new_bench()
    numel = LARGE if phase in ("large payload", "read") else 50
    descriptors = [stream.fileno() for stream in bench.peer]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", STUCK_PEER, phase, *map(str, descriptors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for stream in bench.peer:
        stream.close()

    def kill() -> None:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        process.stdin.write(message(numel)[:sent])
        process.stdin.close()
        with pytest.raises(PeerLost, match="rank 0 lost its connection to rank 1") as e:
            bench.send(LARGE) if phase == "read" else bench.receive(numel)
        assert e.value.rank == 1
    finally:
        killer.join()
        process.wait()
        process.stdout.close()
        put_away(bench)


def test_a_near_peer_gets_a_send_buffer_that_stays_in_the_caches() -> None:
    near, other = connected_pair()
    with contextlib.closing(AbortState()) as abort_state, other, contextlib.closing(Link(1, [near])) as link:
        operation = Operation(0, SIGNATURE.pack(), PATIENCE, abort_state)
        for _ in range(10_000):
            link.send(operation, torch.zeros(1_000_000))
            if near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 256 * 1024:
                return
            # On a busy machine the first round trips take long: make another.
            near.send(b"?")
            other.recv(1)
            other.send(b"!")
            select.select([near], [], [])
            near.recv(1)
    pytest.fail("a peer on the loopback interface wasn't found to be near")
