"""Small models, and the comparison of their gradients on ranks with those of one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel import DataParallel
from tests.comm.thread_ranks import run_ranks

Gradients = list[torch.Tensor | None]

_seeding = threading.Lock()


def seeded(build: Callable[[], Any]) -> Any:
    """Build a module with the same weights each time; ranks are threads, which share torch's generator."""
    with _seeding, torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def gradients(module: nn.Module) -> Gradients:
    return [None if p.grad is None else p.grad.detach().clone() for p in module.parameters()]


def assert_close(ours: Gradients, theirs: Gradients, **tolerance: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None or other is None:
            assert mine is other
        else:
            torch.testing.assert_close(mine, other, **tolerance)


def compare(make: Callable[[], nn.Module], loss: Callable[..., Any], size: int = 2, **tolerance: Any) -> None:
    """Check three steps' gradients, averaged in each way, against the mean of the ranks' losses on one rank."""
    alone = seeded(make)
    torch.autograd.backward(sum(loss(alone, rank) / size for rank in range(size)))
    expected = gradients(alone)
    for overlap, large in ((False, None), (True, None), (True, 1)):

        def work(group: Group, overlap: bool = overlap) -> list[Gradients]:
            model = seeded(make)
            wrapped = DataParallel(model, group, overlap=overlap)
            seen = []
            for _ in range(3):
                wrapped.zero_grad()
                loss(wrapped, group.rank).backward()
                seen.append(gradients(model))
            return seen

        with pytest.MonkeyPatch.context() as patch:
            if large is not None:
                patch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", large)
            for seen in run_ranks(size, work):
                for step in seen:
                    assert_close(step, expected, **tolerance)


def reduce_at_once(group: Group) -> None:
    """Let asynchronous reductions end before their call returns: at the worst moment for who shares their memory."""

    def allreduce_agreed(*args: Any, **kwargs: Any) -> Any:
        handle = Group.allreduce_agreed(group, *args, **kwargs)
        handle.wait()
        return handle

    vars(group)["allreduce_agreed"] = allreduce_agreed


def inputs_of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def layers() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def make_layers() -> Any:
    return seeded(layers)
