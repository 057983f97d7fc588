"""What workers do that share the weights of a model; called on the ranks of process_ranks."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies import hogwild
from hpsearch_trainers.trainer import Trainer
from tests.trainers.test_trainer import FakeTrial

ROWS, WIDTH = 20_000, 16


class Sums(nn.Module):
    """Each row's loss is the sum of all weights, so that each step adds the same to each."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, inputs: Tensor) -> Any:
        return sum(weight.sum() for weight in self.weights) + 0.0 * inputs.sum()


class Table(nn.Module):
    """Each row looks a vector up."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS + 1000, WIDTH, sparse=sparse)
        nn.init.ones_(self.table.weight)

    def forward(self, inputs: Tensor) -> Any:
        return self.table(inputs)


class Counting(Trainer):
    """Adds one to each weight in each step."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        model = Sums((50_000,), (3, 4), (7,), (2, 20_000), (1,))
        steps, width = params["steps"], params["width"]
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            lambda output, _target: -output,
            train=(torch.ones(width * steps, 1), torch.ones(width * steps)),
            batch_size=width,
        )


class LookingUp(Trainer):
    """Looks each row of a table up once in an epoch, and takes as much from it as its number says."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        model = Table(params["sparse"])
        kind = getattr(torch.optim, params.get("optimizer", "SGD"))
        return Parts(
            model,
            kind(model.parameters(), lr=1.0),
            lambda output, target: (output.mean(1) * target).sum(),
            train=(torch.arange(ROWS), torch.arange(ROWS) % 7.0),
            batch_size=100,
        )


def counted(group: Group, strategy: str, steps: int) -> list[list[float]]:
    """Return the values that occur in each weight after so many steps of each of two workers."""
    hogwild._BUCKET = 64  # so that there are several
    trainer = Counting(FakeTrial({"steps": steps, "width": group.size}, group, parallel={"strategy": strategy}))
    trainer.step()
    assert [len(held["params"]) for held in trainer.optimizer.param_groups] == [5]
    return [sorted(set(weight.flatten().tolist())) for weight in trainer.model.parameters()]


def looked_up(group: Group, strategy: str, sparse: bool, optimizer: str = "SGD") -> int:
    """Train for an epoch, and return how many elements of the table aren't what SGD has to make of them.

    This process may write to no page of the rows that nobody looks up: it would end.
    """
    trainer = LookingUp(FakeTrial({"sparse": sparse, "optimizer": optimizer}, group, parallel={"strategy": strategy}))
    (table,) = trainer.model.parameters()
    trainer.optimizer.register_step_pre_hook(lambda *_: _forbid_writing(table[ROWS:]))
    trainer.step()
    expected = torch.ones(ROWS + 1000, WIDTH)
    expected[:ROWS] -= (torch.arange(ROWS) % 7.0)[:, None] / WIDTH
    return int((table.detach() != expected).sum())


def _forbid_writing(rows: Tensor) -> None:
    page = mmap.PAGESIZE
    start, stop = -(-rows.data_ptr() // page) * page, (rows.data_ptr() + rows.nbytes) // page * page
    assert stop > start
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.PROT_READ) == 0


def killed_while_it_writes(group: Group, strategy: str, victim: int) -> None:
    """Let a worker die in the midst of a step."""
    trainer = Counting(FakeTrial({"steps": 200, "width": group.size}, group, parallel={"strategy": strategy}))
    seen = 0

    def die(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            os.kill(os.getpid(), signal.SIGKILL)

    if group.rank == victim:
        trainer.optimizer.register_step_post_hook(die)
    trainer.step()
