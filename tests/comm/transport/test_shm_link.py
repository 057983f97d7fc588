"""A link through shared memory, looked at from inside: its counts, and the order in which memory is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hpsearch_comm.shm import futex
from hpsearch_comm.transport.shm_link import ShmLink
from tests.comm.transport.link_world import LinkWorld, shared_world


@pytest.fixture
def world() -> Iterator[LinkWorld]:
    with shared_world(2, lambda one, other: True) as world:
        yield world


def link(world: LinkWorld, rank: int) -> Any:
    """Return a rank's link to the other."""
    found = world.meshes[rank]._links[1 - rank]
    assert isinstance(found, ShmLink)
    return found


def test_counts_begin_again_behind_the_highest_number(world):
    for rank in (0, 1):
        slots = link(world, rank)._outgoing
        slots.view[slots.written] = slots.view[slots.taken] = 0xFFFFFFFD
    sent = [torch.arange(300_001) + rank for rank in (0, 1)]

    def talk(rank: int) -> list[torch.Tensor]:
        came = []
        for step in range(2):
            operation = world.operation(rank)
            operation.step = step
            came.append(torch.empty_like(sent[rank]))
            world.meshes[rank].exchange(operation, [(1 - rank, sent[rank])], [(1 - rank, came[-1], None)])
        return came

    for rank, came in enumerate(world.run(talk)):
        assert all(torch.equal(tensor, sent[1 - rank]) for tensor in came)
        slots = link(world, rank)._incoming
        assert slots.view[slots.taken] < 1000


class NotingBell:
    """Rings by noting what a word says at that time; on a machine that doesn't order memory, a ring is a fence."""

    def __init__(self, view: memoryview, word: int) -> None:
        self.seen: list[int] = []
        self._view = view
        self._word = word

    def ring(self) -> None:
        self.seen.append(self._view[self._word])


@pytest.mark.parametrize("combine", [None, torch.Tensor.add_])
def test_content_and_counts_are_kept_apart_where_the_machine_does_not_order_memory(world, monkeypatch, combine):
    monkeypatch.setattr(futex, "ORDERED", False)
    sender, receiver = link(world, 0), link(world, 1)
    outgoing, incoming = sender._outgoing, receiver._incoming
    sender.bell = NotingBell(outgoing.view, outgoing.written)
    receiver.bell = NotingBell(incoming.view, incoming.taken)
    assert sender.send(world.operation(0), torch.ones(5)).advance()
    assert sender.bell.seen == [0, 1], "one fence between writing the content and counting it, then the ring"
    received = torch.zeros(5)
    assert receiver.receive(world.operation(1), received, combine).advance()
    assert receiver.bell.seen == [0, 0, 1], "one fence before reading the content, one before giving the slot back"
    assert received.tolist() == [1.0] * 5
