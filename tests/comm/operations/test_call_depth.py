"""How many Python functions lie between a small allreduce and the memory or the socket: each of them is time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from tests.comm.process_ranks import ProcessRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.comm.operations.test_call_depth") as ranks:
        yield ranks


def deepest(group: comm.Group) -> list[str]:
    """Call what is cached already, where the other rank is there, comes soon, and comes late; on each rank.

    Returns:
        The functions of the deepest call, from `Group.allreduce` on.
    """
    tensor = torch.ones(256)
    found: list[str] = []

    def look(frame: FrameType | None, event: str, _argument: Any) -> None:
        nonlocal found
        names = []
        while frame is not None and frame.f_code is not deepest.__code__:
            if "hpsearch_comm" in frame.f_code.co_filename:  # not what the interpreter does in between
                names.append(frame.f_code.co_name)
            frame = frame.f_back
        if event == "call" and len(names) > len(found):
            found = names[::-1]

    for _side in range(2):  # what is written in turn to two sides of memory has been cached for each then
        group.allreduce(tensor)
    for late in (0.0, 0.004, 0.15):
        for turn in range(6):
            if late and turn % group.size == group.rank:
                signal.sigtimedwait([], late)
            sys.setprofile(look)
            group.allreduce(tensor)
            sys.setprofile(None)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("transport", "most"), [("auto", 6), ("tcp", 11)])
def test_a_small_allreduce_is_few_calls_deep_waits_included(ranks, transport, most):
    for outcome in ranks.call(2, "deepest", transport=transport):
        assert outcome.code == 0, outcome.text
        assert len(outcome.result) <= most, outcome.result
