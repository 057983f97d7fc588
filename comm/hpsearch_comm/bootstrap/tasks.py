"""Run coroutines that open and accept connections, in a thread of their own.

The calling thread may have a running event loop already, such as that of a notebook or of an actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_SECONDS = 2.0
"""Seconds that a cancelled coroutine has to end. One that waits in a store's call can't."""


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Call a function in a new thread, and return its future result. The thread doesn't keep the process alive."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="hpsearch-comm-start", daemon=True).start()
    return outcome


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new thread, and return its result. Ctrl-C in the calling thread cancels it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    outcome = in_thread(partial(loop.run_until_complete, task))
    try:
        return outcome.result()
    except BaseException as error:
        if not outcome.done():
            loop.call_soon_threadsafe(task.cancel, repr(error))
            wait([outcome], _CANCEL_SECONDS)
        raise
    finally:
        if outcome.done():
            loop.close()


async def alongside(main: Coroutine[Any, Any, T], others: Iterable[Coroutine[Any, Any, object]]) -> T:
    """Run a coroutine to its end while others run, then cancel these. The first error of any ends all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other) for other in others]
            result = await main
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    return result


async def wait_for(event: asyncio.Event, until: float) -> None:
    """Wait until the event is set, at most until this time in seconds of `time.monotonic()`, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await event.wait()
    event.clear()


async def readable(sock: socket.socket) -> None:
    """Wait until a socket is readable. asyncio's `sock_accept` loses a connection that comes while it is cancelled."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sock, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(sock)


async def receive(sock: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes and return them.

    Raises:
        OSError: The other side ended the connection.
    """
    arrived = b""
    while len(arrived) < count:
        chunk = await asyncio.get_running_loop().sock_recv(sock, count - len(arrived))
        if not chunk:
            raise OSError(errno.ECONNRESET, "it ended the connection before it answered")
        arrived += chunk
    return arrived


def has_events(sock: socket.socket, events: int) -> bool:
    """Return whether a socket has one of the events now; see poll(2)."""
    poll = select.poll()
    poll.register(sock, events)
    return bool(poll.poll(0))
