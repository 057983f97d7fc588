"""Point-to-point messages: one thread runs all sends and receives, in parallel with collectives and on separate links.

Messages are ordered separately for each pair of ranks and each direction: a waiting receive delays no send, and a send
to one rank delays no send to another rank.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
from collections.abc import Mapping

import torch

from hpsearch_comm.errors import CommError, GroupClosedError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.operations.lanes import IncomingLane, Lane, OutgoingLane
from hpsearch_comm.operations.messages import Mailbox, Receive, Send, UnexpectedMessage
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.transport.link import Link, check, sleep


class PointToPoint:
    """The sends and receives of a group. As with collectives, an error ends the group.

    Args:
        rank: This rank.
        links: The link to each peer. Nothing else uses these links; this object closes them.
        abort_state: The group's abort state.
        timeout: Seconds without progress after which a send or a receive fails.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], abort_state: AbortState, timeout: float) -> None:
        self._rank = rank
        self._links = dict(links)
        self._abort_state = abort_state
        self._timeout = timeout
        self._lock = threading.RLock()  # for signal handlers, as in `WorkQueue`
        self._closed = False
        self._thread: threading.Thread | None = None
        self._submitted: queue.SimpleQueue[Send | Receive | None] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The attributes from here on are only used in the thread.
        self._closing = False
        self._mailbox = Mailbox()
        self._outgoing: dict[int, OutgoingLane] = {}
        self._incoming: dict[int, IncomingLane] = {}
        self._sent_to_itself = 0
        self._wait: Wait | None = None
        self._own_wait: Wait | None = None

    def submit(self, message: Send | Receive) -> None:
        """Queue a send or a receive for the thread.

        Raises:
            GroupClosedError: The group is closed.
        """
        with self._lock:
            if self._closed:
                raise GroupClosedError("the group is closed on this rank: send and receive before you close it")
            if self._thread is None:
                name = f"hpsearch-comm-messages-{self._rank}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._submitted.put(message)
            self._wake_thread()

    def wait(self, handle: Handle[torch.Tensor]) -> torch.Tensor:
        """Wait for a message. If Ctrl-C interrupts, the group ends: the message could still arrive later."""
        try:
            return handle.wait()
        except CommError:
            raise
        except BaseException as interruption:
            self._abort_state.break_off(self._rank, interruption)
            raise

    def finish(self) -> None:
        """Finish the pending sends, cancel receives for which no message has arrived, and accept no more calls."""
        with self._lock:
            closed, self._closed = self._closed, True
            if self._thread is None:
                return
            if not closed:
                self._submitted.put(None)
                self._wake_thread()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        else:  # a group may be garbage collected in any thread, also in this one
            self._closing = True
            self._end_all(GroupClosedError("the group was closed on this rank before the message was through"))

    def close(self) -> None:
        """Release all resources, after `finish`."""
        with self._lock:
            self._closed = True
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._outgoing.clear()
        self._incoming.clear()

    def _wake_thread(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # In the thread.

    def _run(self) -> None:
        while not self._closing or self._under_way():
            try:
                self._move()
            except BaseException as error:
                self._abort_state.break_off(self._rank, error, "broke off a send or a receive because of its own")
                assert self._abort_state.error is not None
                self._end_all(self._abort_state.error)

    def _move(self) -> None:
        """Continue all transfers, or sleep if none can continue.

        Raises:
            CommError: The group has ended, or has to end.
        """
        self._take_submitted(block=not self._closing and not self._mailbox.waiting and not self._under_way())
        if self._abort_state.error is not None:
            self._abort_state.check()
        if any([lane.step() for lane in self._lanes()]):
            self._wait = None
            return
        for lane in self._lanes():
            lane.check()
        self._check_anyone()
        if self._mailbox.waiting or self._under_way():
            pending = [lane.transfer for lane in self._lanes() if lane.transfer is not None]
            sleep(pending, self._abort_state, self._wake)

    def _take_submitted(self, *, block: bool) -> None:
        """Process the submitted calls. With `block`, wait for one."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while True:
            try:
                message = self._submitted.get(block)
            except queue.Empty:
                return
            block = False
            if message is None:
                self._closing = True
                self._cancel_receives()
            elif isinstance(message, Receive):
                self._receive(message)
            elif message.target == self._rank:
                self._send_to_itself(message)
            else:
                self._send(message)

    def _send(self, send: Send) -> None:
        if send.target not in self._outgoing:
            self._outgoing[send.target] = OutgoingLane(self._links[send.target], self._operation)
        self._outgoing[send.target].queue.append(send)

    def _send_to_itself(self, send: Send) -> None:
        number, self._sent_to_itself = self._sent_to_itself, self._sent_to_itself + 1
        message = self._operation(send.call.packed(number))
        unexpected = UnexpectedMessage(self._rank, message, send.payload.clone())
        send.handle.finish(send.tensor)
        self._mailbox.take_in(unexpected)

    def _receive(self, receive: Receive) -> None:
        unexpected = self._mailbox.post(receive)
        if unexpected is not None:
            unexpected.deliver_to(receive)
            return
        for peer in self._links if receive.source is None else [receive.source]:
            if peer not in self._incoming and peer != self._rank:
                link = self._links[peer]
                self._incoming[peer] = IncomingLane(link, self._operation, self._mailbox, self._abort_state)

    def _cancel_receives(self) -> None:
        for receive in self._mailbox.clear():
            closed = f"{receive.handle.name} was given up, since the group was closed on this rank: wait for it before"
            receive.handle.finish(error=GroupClosedError(closed))

    def _check_anyone(self) -> None:
        """Raise an error if a message from any rank or from this rank can't come, or doesn't for too long."""
        receive = self._mailbox.first(None)
        self._check_own(self._mailbox.first(self._rank) or (None if self._links else receive))
        if receive is None or not self._links:
            self._wait = None
            return
        departed, lanes = self._abort_state.departed, [lane for lane in self._incoming.values() if not lane.ended]
        lanes = [lane for lane in lanes if lane.peer not in departed] or lanes
        if not lanes:
            self._abort_state.check(next(iter(self._links)))
        if self._wait is None:
            self._wait = Wait(self._operation(receive.call.packed(0)))
        check(self._wait, [lane.transfer for lane in lanes if lane.transfer is not None])

    def _check_own(self, receive: Receive | None) -> None:
        """Raise an error if this rank waits too long for a message from itself. No other traffic counts as progress."""
        if receive is None:
            self._own_wait = None
            return
        if self._own_wait is None:
            self._own_wait = Wait(self._operation(receive.call.packed(self._sent_to_itself)))
        self._own_wait.check([self._rank])

    def _under_way(self) -> bool:
        """Return whether a message is being sent or received."""
        sending = any(lane.queue for lane in self._outgoing.values())
        return sending or any(lane.is_receiving for lane in self._incoming.values())

    def _lanes(self) -> list[Lane]:
        return [*self._outgoing.values(), *self._incoming.values()]

    def _operation(self, packed: bytes) -> Operation:
        return Operation(self._rank, packed, self._timeout, self._abort_state)

    def _end_all(self, error: CommError) -> None:
        """Finish all calls with the error that has ended the group."""
        handles: list[Handle[torch.Tensor]] = [receive.handle for receive in self._mailbox.clear()]
        handles += [lane.receive.handle for lane in self._incoming.values() if lane.receive is not None]
        handles += [send.handle for lane in self._outgoing.values() for send in lane.queue]
        self._outgoing.clear()
        self._incoming.clear()
        for handle in handles:
            handle.finish(error=copy.copy(error).with_traceback(None))
