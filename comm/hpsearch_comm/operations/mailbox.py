"""Which message is for which receive: by its source and its tag, and among those that fit in their order.

A message that nobody waits for yet is left with its sender, so that no sender fills this rank's memory. Only where a
receive waits for another message of the same sender, of another tag, are those in front of it taken and kept.
"""

from __future__ import annotations

from hpsearch_comm.operations.messages import Receive, UnexpectedMessage


class Mailbox:
    """The receives that wait, and the messages that are kept for later ones.

    Attributes:
        waiting: The receives, in the order in which they were called.
    """

    def __init__(self) -> None:
        self.waiting: list[Receive] = []
        self._unexpected: list[UnexpectedMessage] = []

    def post(self, receive: Receive) -> UnexpectedMessage | None:
        """Return the first kept message that fits, or let the receive wait for one."""
        for index, unexpected in enumerate(self._unexpected):
            if unexpected.tag == receive.tag and receive.source in (None, unexpected.source):
                return self._unexpected.pop(index)
        self.waiting.append(receive)
        return None

    def match(self, source: int, tag: int) -> Receive | None:
        """Take out the first receive that waits for such a message."""
        for index, receive in enumerate(self.waiting):
            if receive.tag == tag and receive.source in (None, source):
                return self.waiting.pop(index)
        return None

    def take_in(self, message: UnexpectedMessage) -> None:
        """Finish the first receive that waits for a message, or keep it for a later one, behind those kept before.

        Raises:
            MismatchError: The receive is for another dtype or shape.
        """
        receive = self.match(message.source, message.tag)
        if receive is None:
            self._unexpected.append(message)
        else:
            message.deliver_to(receive)

    def wants(self, source: int) -> bool:
        """Return whether a receive waits for this rank, or for any."""
        return any(receive.source in (None, source) for receive in self.waiting)

    def first(self, source: int | None) -> Receive | None:
        """Return the first receive that waits for this very rank; for None, the first that waits for any."""
        return next((receive for receive in self.waiting if receive.source == source), None)

    def clear(self) -> list[Receive]:
        """Take out everything, and return the receives."""
        waiting, self.waiting, self._unexpected = self.waiting, [], []
        return waiting
