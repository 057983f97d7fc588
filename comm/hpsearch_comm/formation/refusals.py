"""For how long a rank that is refused where it looks for rank 0 tries again.

Whoever refuses it may be another group that is about to leave the place. But where the secrets differ, waiting is of no
use, and the user should hear of it soon. Only the rank that is refused gives up: rank 0 goes on whatever strangers say.
"""

from __future__ import annotations

import logging
import time

from hpsearch_comm.errors import RefusedError
from hpsearch_comm.formation.handshake import Refusal

__all__ = ["Refusals"]

_PATIENCE = 5.0
"""Seconds; longer than rank 0 waits for another group to leave its port."""

_log = logging.getLogger(__name__)


class Refusals:
    """What a rank is told at a place where it looks for rank 0.

    Args:
        who: The rank, for the log.
        place: The place, for the log.
    """

    def __init__(self, who: str, place: str) -> None:
        self._who = who
        self._place = place
        self._since: float | None = None
        self._last = ""
        self._may_pass = False

    def add(self, error: RefusedError) -> None:
        """Note that a try was refused."""
        if self._since is None:
            self._since = time.monotonic()
        if str(error) != self._last:
            _log.warning("%s was refused at %s, and tries again: %s", self._who, self._place, error)
        self._last = str(error)
        self._may_pass = isinstance(error, Refusal) and error.verdict.may_pass

    def end(self) -> None:
        """Note that a try was not refused."""
        self._since = None

    @property
    def are_final(self) -> bool:
        """Whether they have gone on for so long that waiting is of no use."""
        return self._since is not None and not self._may_pass and time.monotonic() - self._since >= _PATIENCE
