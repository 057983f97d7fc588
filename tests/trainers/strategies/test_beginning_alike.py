"""Under every strategy all ranks begin with what rank 0 has built, drawn or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies import STRATEGIES
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial, Small


class Shift(nn.Module):
    """Adds what no checkpoint holds."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.register_buffer("by", torch.full((16,), by), persistent=False)

    def forward(self, inputs: Tensor) -> Any:
        return inputs + self.get_buffer("by")


class Shifted(Small):
    """Its ranks build different models."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        parts = super().build({})
        with torch.no_grad():
            for parameter in parts.model.parameters():
                parameter.fill_(params["rank"])
        parts.model.insert(1, Shift(float(params["rank"])))  # type: ignore[operator]
        return parts


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_ranks_have_what_the_first_has_built(strategy):
    def work(group: Group) -> list[float]:
        trainer = Shifted(FakeTrial({"rank": group.rank + 1}, group, parallel={"strategy": strategy}))
        model = trainer.model
        return [float(tensor.detach().mean()) for tensor in (*model.parameters(), *model.buffers())]

    assert run_ranks(2, work) == [[1.0] * 5] * 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_ranks_go_on_with_what_the_first_has_changed(strategy):
    """In place, where nothing tells of it."""

    def work(group: Group) -> list[float]:
        trainer: Any = Small(FakeTrial({}, group, parallel={"strategy": strategy}))
        trainer.step()
        with torch.no_grad():
            trainer.model[2].bias.fill_(group.rank + 1.0)
        trainer.optimizer.param_groups[0]["lr"] = 0.0
        trainer.step()
        return list(trainer.model[2].bias.tolist())

    assert run_ranks(2, work) == [[1.0] * 5] * 2
