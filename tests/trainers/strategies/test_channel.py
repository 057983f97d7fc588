"""Lists of tensors between two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.pipeline import Channel, packed, unpacked
from tests.comm.thread_ranks import run_ranks

MESSAGES: list[list[Tensor | None]] = [
    [torch.arange(6.0).view(2, 3)],
    [torch.arange(6.0).view(2, 3) + 1],
    [torch.arange(6.0).view(3, 2)],
    [torch.arange(6.0).view(3, 2), None, torch.tensor(True)],
    [torch.arange(6.0).view(3, 2).requires_grad_(), torch.zeros(0, 4, dtype=torch.bfloat16), torch.tensor([3])],
    [None],
    [torch.arange(6).view(2, 3).t()],
    [torch.arange(6.0).view(2, 3)],
]


def test_tensors_arrive_as_they_were_sent_in_both_directions_at_once():
    def work(group: Group) -> list[list[Tensor | None]]:
        channel = Channel(group, 1 - group.rank, torch.device("cpu"))
        found = []
        for message in MESSAGES:
            channel.send(message)
            found.append(channel.receive())
        channel.flush()
        return found

    for found in run_ranks(2, work):
        for one, other in zip(found, MESSAGES, strict=True):
            for tensor, expected in zip(one, other, strict=True):
                assert (tensor is None) == (expected is None)
                if tensor is not None and expected is not None:
                    assert tensor.requires_grad == expected.requires_grad
                    assert torch.equal(tensor, expected)
                    assert tensor.dtype is expected.dtype


def test_a_stage_gives_tensors():
    one, two = torch.zeros(1), torch.ones(1)
    assert packed(unpacked(one, 0)) is one
    assert packed(unpacked((one, two), 0)) == (one, two)


@pytest.mark.parametrize("output", [(), {"a": torch.zeros(1)}, (torch.zeros(1), (torch.zeros(1),)), None, nn.ReLU()])
def test_anything_else_is_refused(output: Any):
    with pytest.raises(ConfigurationError, match=r"stage 1 gives .*: cut the model elsewhere"):
        unpacked(output, 1)
