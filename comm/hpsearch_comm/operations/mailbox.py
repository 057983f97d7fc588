"""Match messages with receives: by source and tag, in the order of arrival.

A message without a waiting receive stays with its sender, so that no sender fills this rank's memory. It is received
early and kept only if a receive waits for a later message of the same sender, with another tag.
"""

from __future__ import annotations

from hpsearch_comm.operations.messages import Receive, UnexpectedMessage


class Mailbox:
    """The waiting receives, and the messages that are kept for later receives.

    Attributes:
        waiting: The receives, in the order in which they were called.
    """

    def __init__(self) -> None:
        self.waiting: list[Receive] = []
        self._unexpected: list[UnexpectedMessage] = []

    def post(self, receive: Receive) -> UnexpectedMessage | None:
        """Return the first kept message that matches; if there is none, add the receive to the waiting ones."""
        for index, unexpected in enumerate(self._unexpected):
            if unexpected.tag == receive.tag and receive.source in (None, unexpected.source):
                return self._unexpected.pop(index)
        self.waiting.append(receive)
        return None

    def match(self, source: int, tag: int) -> Receive | None:
        """Remove and return the first receive that waits for such a message; None if there is none."""
        for index, receive in enumerate(self.waiting):
            if receive.tag == tag and receive.source in (None, source):
                return self.waiting.pop(index)
        return None

    def take_in(self, message: UnexpectedMessage) -> None:
        """Deliver a message to the first matching receive; if there is none, keep it for a later receive.

        Raises:
            MismatchError: The receive expects another dtype or shape.
        """
        receive = self.match(message.source, message.tag)
        if receive is None:
            self._unexpected.append(message)
        else:
            message.deliver_to(receive)

    def wants(self, source: int) -> bool:
        """Return whether a receive waits for this rank or for any rank."""
        return any(receive.source in (None, source) for receive in self.waiting)

    def first(self, source: int | None) -> Receive | None:
        """Return the first receive that waits for exactly this rank; with None, the first that waits for any rank."""
        return next((receive for receive in self.waiting if receive.source == source), None)

    def clear(self) -> list[Receive]:
        """Remove all receives and messages, and return the receives."""
        waiting, self.waiting, self._unexpected = self.waiting, [], []
        return waiting
