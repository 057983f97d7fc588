"""Under every strategy all ranks begin with what rank 0 has built, drawn or changed, and train one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError, MismatchError
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies import STRATEGIES
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small


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


@pytest.mark.some_cases(3)
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


def _freezes(trainer: Any) -> None:
    trainer.model[2].requires_grad_(False)


def _sets(name: str, value: float) -> Callable[[Any], None]:
    return lambda trainer: trainer.optimizer.param_groups[0].update({name: value})


def _regroups(trainer: Any) -> None:
    held = trainer.optimizer.param_groups[0]["params"]
    moved, held[:] = held[:2], held[2:]
    trainer.optimizer.add_param_group({"params": moved})


def _goes_back(trainer: Any) -> None:
    trainer.epoch = 0


UNLIKE: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "freezes": (
        _freezes,
        r"parameter 2.weight float32 \[5, 16\]",
        r"parameter 2.weight float32 \[5, 16\] without grad",
    ),
    "momentum": (_sets("momentum", 0.5), "group 0 of the optimizer with .*momentum 0.9", ".* momentum 0.5"),
    "rate": (_sets("lr", 0.01), "group 0 of the optimizer with lr 0.05", "group 0 of the optimizer with lr 0.01"),
    "regroups": (_regroups, "parameter 0.weight in group 0", "parameter 2.weight in group 0"),
    "epoch": (_goes_back, "epoch 1", "epoch 0"),
}
"""What one rank alone changes between two epochs; what rank 0 has, and what that one."""


@pytest.mark.some_cases(7)
@pytest.mark.parametrize(
    ("strategy", "how"),
    # Where each rank steps when it is ready, a rate may be that of a step of its own.
    [
        (name, how)
        for name, kind in STRATEGIES.items()
        for how in UNLIKE
        if how != "rate" or kind.capabilities.reproducible
    ],
)
def test_a_rank_that_changes_something_alone_is_told(strategy, how):
    change, first, last = UNLIKE[how]

    def work(group: Group) -> None:
        trainer = Small(FakeTrial({}, group, parallel={"strategy": strategy}))
        trainer.step()
        if group.rank == 1:
            change(trainer)
        with pytest.raises(MismatchError, match=f"what is trained must be .* rank 0 has {first}.*, rank 1 has {last}"):
            trainer.step()

    run_ranks(2, work)


def test_a_rank_that_clears_its_optimizers_state_alone_is_told():
    def work(group: Group) -> None:
        trainer = Small(FakeTrial({}, group))
        trainer.step()
        if group.rank == 1:
            trainer.optimizer.state.clear()
        with pytest.raises(MismatchError, match=r"rank 0 has .* with momentum_buffer.*, rank 1 has .* with no state"):
            trainer.step()

    run_ranks(2, work)


class ByRows(nn.Linear):
    """Sets what is trained by the rows that it sees."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.bias.copy_(inputs.mean(0)[:5])
        return super().forward(inputs)


def test_ranks_that_train_different_models_are_told(monkeypatch):
    monkeypatch.setitem(MODELS, "rows", lambda: nn.Sequential(nn.Linear(12, 16), ByRows(16, 5)))

    def work(group: Group) -> str:
        with pytest.raises(ConfigurationError) as caught:
            Small(FakeTrial({"model": "rows"}, group)).step()
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "allreduce weights that are trained must be the same on all ranks, got others on each" in text
