from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hpsearch_comm.bootstrap.tasks import alongside, has_events, receive, run, wait_for
from tests.comm.forming import leaking_nothing


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaking_nothing():
        yield


async def forever() -> None:
    await asyncio.Event().wait()


def test_the_result_comes_back_also_where_a_loop_is_running():
    async def one() -> int:
        return 1

    async def outer() -> int:
        return run(one())

    assert run(one()) == asyncio.run(outer()) == 1


def test_an_interrupt_cancels_and_is_raised():
    ends: list[str] = []

    async def wait() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await forever()
        except asyncio.CancelledError as error:
            ends.append(str(error))
            raise

    with pytest.raises(KeyboardInterrupt):
        run(wait())
    assert ends == ["KeyboardInterrupt()"]


def test_others_end_with_the_main_one():
    ends: list[str] = []

    async def other() -> None:
        try:
            await forever()
        finally:
            ends.append("ended")

    async def main() -> int:
        await asyncio.sleep(0)
        return 2

    assert run(alongside(main(), [other(), other()])) == 2
    assert ends == ["ended"] * 2


def test_the_first_error_of_any_ends_all_and_is_raised_alone():
    async def fails() -> None:
        raise ValueError("one")

    async def nested() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    for other in (fails(), nested()):
        with pytest.raises(ValueError, match="one"):
            run(alongside(forever(), [forever(), other]))
    with pytest.raises(ValueError, match="one"):
        run(alongside(fails(), [forever()]))


def test_an_event_is_waited_for_until_a_time():
    async def wait() -> bool:
        event = asyncio.Event()
        await wait_for(event, time.monotonic() + 0.01)
        event.set()
        await wait_for(event, time.monotonic() + 1e6)
        return event.is_set()

    assert run(wait()) is False


def test_all_bytes_are_received_and_an_end_before_is_an_error():
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)

        async def talk() -> bytes:
            for byte in (b"a", b"b"):
                right.sendall(byte)
                await asyncio.sleep(0)
            return await receive(left, 2)

        assert run(talk()) == b"ab"
        right.sendall(b"c")
        right.close()
        with pytest.raises(ConnectionResetError, match="it ended the connection before it answered"):
            run(receive(left, 2))


def test_events_of_a_socket_are_seen():
    left, right = socket.socketpair()
    with contextlib.closing(left), right:
        assert not has_events(left, select.POLLIN)
        right.sendall(b"a")
        assert has_events(left, select.POLLIN)
