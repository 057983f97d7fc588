"""Which rank failed first: what the others raise, they mostly raise because of it.

The order in which ranks end says little: one that raises in a `with comm.init()` tells the others, who may be quicker
to end than itself. So a rank whose last words are that another one is lost is only a witness, and counts as the first
to fail where nobody else failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Death", "Verdict", "is_witness", "last_traceback"]

# torch.distributed's own hook begins each line with the rank; groups of exceptions are drawn as a tree.
_MARGIN = rb"^(?:\[rank\d+\]: ?)?[ |]*"
_BEGIN = re.compile(_MARGIN + rb"(?:\+ Exception Group )?Traceback \(most recent call last\):", re.MULTILINE)
_WITNESS = re.compile(
    _MARGIN + rb"(?:hpsearch_comm\.errors\.|torch\.distributed\.DistBackendError: )?(?:PeerLost|RendezvousError): ",
    re.MULTILINE,
)


def is_witness(stderr: bytes) -> bool:
    """Whether a rank says, in the end of what it wrote to stderr, that it fails because of another."""
    return _WITNESS.search(stderr) is not None


def last_traceback(stderr: bytes) -> bytes:
    """Return the last traceback in what a rank wrote to stderr, and what follows it; empty where there is none."""
    begins = [found.start() for found in _BEGIN.finditer(stderr)]
    return stderr[begins[-1] :] if begins else b""


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
    def first(self) -> Death | None:
        """The rank that failed first."""
        return min(self.deaths, key=lambda death: death.witness, default=None)
