from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.bootstrap import exchange
from hpsearch_comm.bootstrap.connector import Endpoint
from hpsearch_comm.bootstrap.exchange import Venue, gather, join
from hpsearch_comm.bootstrap.handshake import Hello
from hpsearch_comm.errors import CommError, RefusedError, RendezvousError
from tests.comm.forming import LOOPBACK, PATIENCE, new_credentials, read_to_end, verify
from tests.comm.meeting import given_time, leaving_nothing, outcomes

CREDENTIALS = new_credentials()


def venue(size: int, seconds: float = PATIENCE) -> Venue:
    return Venue(size, CREDENTIALS, time.monotonic() + seconds, "here", "Do better")


def listening() -> tuple[socket.socket, tuple[str, int]]:
    """Open a port, and say where it is."""
    listener = socket.create_server((LOOPBACK, 0))
    return listener, listener.getsockname()


def joining(place: Endpoint, rank: int, size: int, seconds: float = PATIENCE) -> list[str]:
    return join(venue(size, seconds), rank, lambda: [place], f"text of {rank}")


def test_everybody_gets_all_texts():
    texts = ["text of 0", "text of 1", "text of 2"]
    with leaving_nothing(), ThreadPoolExecutor(3) as pool:
        listener, place = listening()
        futures = [pool.submit(gather, venue(3), [listener], texts[0])]
        futures += [pool.submit(joining, place, rank, 3) for rank in (1, 2)]
        assert [future.result(PATIENCE) for future in futures] == [texts] * 3


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=4))
def test_texts_arrive_as_they_are(texts):
    size = len(texts)
    with ThreadPoolExecutor(size) as pool:
        listener, place = listening()
        futures = [pool.submit(gather, venue(size), [listener], texts[0])]
        futures += [pool.submit(join, venue(size), rank, lambda: [place], texts[rank]) for rank in range(1, size)]
        assert [future.result(PATIENCE) for future in futures] == [texts] * size


@pytest.mark.parametrize("rank", [0, 3, 2**31 - 1])
def test_a_rank_that_cannot_be_is_refused(rank):
    with leaving_nothing(), ThreadPoolExecutor(1) as pool:
        listener, place = listening()
        gathered = pool.submit(gather, venue(2), [listener], "")
        with pytest.raises(RendezvousError, match=f"refused rank {rank}: its rank must be from 1 to 1"):
            joining(place, rank, 2)
        assert joining(place, 1, 2) == gathered.result(PATIENCE)


def test_any_place_at_which_rank_0_is_will_do():
    with leaving_nothing(), ThreadPoolExecutor(1) as pool, socket.socket() as nobody:
        nobody.bind((LOOPBACK, 0))
        listener, place = listening()
        gathered = pool.submit(gather, venue(2), [listener], "")
        assert join(venue(2), 1, lambda: [nobody.getsockname(), place], "") == gathered.result(PATIENCE)


def test_whatever_stops_rank_0_closes_its_sockets(monkeypatch):
    def meet(soon: float) -> dict[str, object]:
        listener, place = listening()

        async def stop(arrived: asyncio.Event, _until: float) -> None:
            await arrived.wait()
            raise RuntimeError("stop")

        def take() -> bool:
            with pytest.raises(RuntimeError, match="stop"):
                gather(venue(3), [listener], "")
            return listener.fileno() < 0

        monkeypatch.setattr(exchange, "wait_for", stop)
        return outcomes({"stopped": take, "rank 1": lambda: joining(place, 1, 3, soon)})

    with leaving_nothing():
        found = given_time(meet, lambda found: found["stopped"] is True)
    assert found["stopped"] is True
    # Its connections end, and nobody is there any more.
    assert isinstance(found["rank 1"], RendezvousError)
    assert "did not find rank 0" in str(found["rank 1"])


@pytest.fixture
def false_rank_0() -> Iterator[Callable[[Callable[[Hello], bytes]], Endpoint]]:
    """Do the handshake with all who come, say this to them, and hang up unless it is empty."""
    listener, place = listening()
    threads: list[threading.Thread] = []

    def says(message: Callable[[Hello], bytes]) -> Endpoint:
        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                # Who gives up in the middle comes again.
                with sock, contextlib.suppress(OSError, AssertionError):
                    hello = verify(sock, CREDENTIALS)
                    sock.sendall(message(hello))
                    if not message(hello):
                        read_to_end(sock)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return place

    yield says
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join()


def signed(body: bytes, nonce: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body + exchange._sign(CREDENTIALS, nonce, body)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (lambda hello: b"HTTP/1.1 400", "is of 1347703880 bytes, too many for 3 ranks"),
        (lambda hello: signed(b'{"texts": []}', bytes(32)), "somebody has altered it"),
        (lambda hello: signed(b'{"texts": [1]}', hello.nonce).replace(b"1", b"2"), "somebody has altered it"),
        (lambda hello: signed(b"{}", hello.nonce)[:-1], "ended the connection before it answered"),
        (lambda hello: b"HP", "ended the connection before it answered"),
    ],
    ids=["long", "replayed", "altered", "cut off", "short"],
)
def test_an_outcome_that_cannot_be_is_not_taken(false_rank_0, monkeypatch, message, reason):
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.1)

    def meet(soon: float) -> CommError:
        with pytest.raises(CommError, match=r"rank 1 of 3 did not find rank 0.*here.*Do better") as caught:
            joining(place, 1, 3, soon)
        return caught.value

    place = false_rank_0(message)
    assert reason in str(given_time(meet, lambda error: reason in str(error)))


def test_who_passes_on_everything_but_a_text_is_found_out(monkeypatch):
    # As a stranger may who has written a place of its own into the store.
    monkeypatch.setattr(exchange, "_REFUSED_SECONDS", 0.0)

    def pass_on(door: socket.socket, rank_0: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = door.accept()
                with client, contextlib.suppress(OSError), socket.create_connection(rank_0) as server:
                    while True:
                        source = select.select([client, server], [], [], PATIENCE)[0][0]
                        if not (chunk := source.recv(1 << 16)):
                            break
                        (server if source is client else client).sendall(chunk.replace(b"text of 0", b"text of 9"))

    def meet(soon: float) -> dict[int, list[str] | Exception]:
        listener, rank_0 = listening()
        with socket.create_server((LOOPBACK, 0)) as door:
            thread = threading.Thread(target=pass_on, args=(door, rank_0))
            thread.start()
            place = door.getsockname()
            found = outcomes(
                {0: lambda: gather(venue(2), [listener], "text of 0"), 1: lambda: joining(place, 1, 2, soon)}
            )
            door.shutdown(socket.SHUT_RDWR)
            thread.join()
        return found

    with leaving_nothing():
        found = given_time(meet, lambda found: "somebody has altered it" in str(found[1]))
    assert isinstance(found[1], CommError)
    assert "somebody has altered it" in str(found[1])


def test_a_rank_0_that_says_nothing_is_given_up(false_rank_0, monkeypatch):
    monkeypatch.setattr(exchange, "_FAREWELL_SECONDS", 0.05)
    told = "rank 0 is there, but told no outcome"

    def meet(soon: float) -> CommError:
        with pytest.raises(RendezvousError) as caught:
            joining(place, 1, 3, soon)
        return caught.value

    place = false_rank_0(lambda hello: b"")
    assert told in str(given_time(meet, lambda error: told in str(error)))


def test_a_refusal_is_told_with_the_end_that_follows():
    def meet(soon: float) -> Exception:
        turns = itertools.chain([RefusedError("the secrets differ")], itertools.repeat(OSError("nobody listens")))

        def where() -> Sequence[Endpoint]:
            raise next(turns)

        with pytest.raises(CommError) as caught:
            join(venue(2, soon), 1, where, "")
        return caught.value

    told = "nobody listens; before that, the secrets differ"
    error = given_time(meet, lambda error: told in str(error))
    assert isinstance(error, RendezvousError)
    assert told in str(error)
