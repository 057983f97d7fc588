"""Which rank failed first, so that its traceback comes first: what the others raise, they mostly raise because of it.

The order in which ranks end says little: one that raises in a `with comm.init()` tells the others, who may be quicker
to end than itself. So a rank whose last words are that another one is lost is only a witness, and counts as the first
to fail where nobody else failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Death", "Tracebacks", "Verdict", "is_failing", "is_witness"]

# torch.distributed's own hook begins each line with the rank; groups of exceptions are drawn as a tree.
_MARGIN = rb"^(?:\[rank\d+\]: ?)?[ |]*"
_BEGIN = re.compile(_MARGIN + rb"(?:\+ Exception Group )?Traceback \(most recent call last\):", re.MULTILINE)
_WITNESS = re.compile(
    _MARGIN + rb"(?:hpsearch_comm\.errors\.|torch\.distributed\.DistBackendError: )?(?:PeerLost|RendezvousError): ",
    re.MULTILINE,
)
_MOST_BYTES = 1 << 20
"""Of a traceback that is held back."""


def is_witness(stderr: bytes) -> bool:
    """Whether a rank says, in the end of what it wrote to stderr, that it fails because of another."""
    return _WITNESS.search(stderr) is not None


def is_failing(stderr: bytes) -> bool:
    """Whether a rank that still runs has written a traceback of its own: it is likely to end soon."""
    return _BEGIN.search(stderr) is not None and not is_witness(stderr)


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that failed."""

    rank: int
    code: int
    """Its exit code, or minus the signal that killed it."""
    witness: bool
    """Whether it says that it fails because of another."""

    @property
    def exit_code(self) -> int:
        """What a shell would make of it."""
        return self.code if self.code > 0 else 128 - self.code


class Verdict:
    """Hears of the ranks that failed, in the order in which that was seen."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []

    def hear(self, death: Death) -> None:
        """Take note of a rank that failed by itself."""
        self.deaths.append(death)

    @property
    def certain(self) -> bool:
        """Whether no other rank can turn out to have been the first."""
        return any(not death.witness for death in self.deaths)

    @property
    def first(self) -> Death | None:
        """The rank that failed first."""
        return min(self.deaths, key=lambda death: death.witness, default=None)


class Tracebacks:
    """Holds back what a rank writes to stderr from a traceback on, until it is known who failed first."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self.since: float | None = None
        """When the first line was held back; None where nothing is."""

    def hold(self, line: bytes, now: float) -> bool:
        """Hold a line back, if it begins a traceback or follows one. Returns whether it does."""
        if self.since is None and not _BEGIN.match(line):
            return False
        if self._size > _MOST_BYTES:
            return False
        self.since = now if self.since is None else self.since
        self._held.append(line)
        self._size += len(line)
        return True

    def release(self) -> list[bytes]:
        """Give what was held back."""
        held, self._held, self._size, self.since = self._held, [], 0, None
        return held
