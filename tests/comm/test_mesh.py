"""The mesh itself, over links that a test moves by hand."""

from __future__ import annotations

import threading

import pytest
import torch

from hpsearch_comm.errors import CommError, CommTimeoutError, PeerLost
from hpsearch_comm.fate import Fate
from hpsearch_comm.links.link import Combine, Link, Transfer
from hpsearch_comm.links.mesh import Mesh
from hpsearch_comm.operation import Operation
from tests.comm.link_world import SIGNATURE


class HandTransfer(Transfer):
    """Moves once after each `push`; done after so many."""

    def __init__(self, peer: int, pushes: int) -> None:
        self.peer = peer
        self.done = False
        self.tries = 0
        self.tried = threading.Event()
        self._missing = pushes
        self._pushed = 0

    def push(self) -> None:
        self._pushed += 1

    def advance(self) -> bool:
        self.tries += 1
        self.tried.set()
        if not self._pushed:
            return False
        self._pushed -= 1
        self._missing -= 1
        self.done = self._missing == 0
        return True


class HandLink(Link):
    def __init__(self, peer: int, pushes: int = 1) -> None:
        self.peer = peer
        self.transfer = HandTransfer(peer, pushes)
        self.closed = False

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        return self.transfer

    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        return self.transfer

    def close(self) -> None:
        self.closed = True


class HandBell:
    """Rings when a test says so, and remembers how it was waited for."""

    def __init__(self) -> None:
        self.rung = threading.Condition()
        self.rings = 0
        self.waits: list[float] = []

    def ring(self) -> None:
        with self.rung:
            self.rings += 1
            self.rung.notify_all()

    def mark(self) -> int:
        return self.rings

    def wait(self, mark: int, seconds: float) -> None:
        with self.rung:
            self.waits.append(seconds)
            self.rung.wait_for(lambda: self.rings != mark, seconds)
