"""Local steps between averages, beside copies of the model in one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies import strategy_of
from tests.comm.thread_ranks import run_ranks
from tests.trainers.strategies.local_workers import Copies, states_after, tensors_of
from tests.trainers.test_trainer import FakeTrial, Small, building, correct, curve, data, mlp, of

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def made(model: nn.Module) -> torch.optim.Optimizer:
    return SGD(model.parameters())


def expected(width: int, epochs: int, period: int, momentum: str) -> list[Tensor]:
    """Return the weights after some epochs, computed from the definition, with averages in float64."""
    torch.manual_seed(3)
    copies = Copies(mlp(), width, made)
    for epoch in range(epochs):
        seen, since, taken = [0] * width, [0] * width, 0
        for step in range(copies.shards[0].steps):
            rows = copies.step(epoch, step)
            taken += 1
            since = [a + b for a, b in zip(since, rows, strict=True)]
            seen = [a + b for a, b in zip(seen, rows, strict=True)]
            last = step == copies.shards[0].steps - 1
            if taken == period or last:
                copies.set(copies.weights(), copies.mean(copies.weights(), since))
                if momentum == "average":
                    copies.set(copies.velocities(), copies.mean(copies.velocities(), since))
                taken, since = 0, [0] * width
        if momentum == "keep":
            copies.set(copies.velocities(), copies.mean(copies.velocities(), seen))
    return copies.weights()[0]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("momentum", ["keep", "average"])
@pytest.mark.parametrize(("width", "period"), [(2, 3), (3, 1), (3, 4), (4, 100), (4, 11)])
def test_weights_are_the_mean_of_what_workers_have_become(width, period, momentum):
    """203 rows in batches of 20: shares are unequal, and in the last step one of four workers has none."""
    parallel = {"strategy": "local_sgd", "period": period, "momentum": momentum}
    of_rank = run_ranks(width, lambda group: states_after(group, 3, parallel))
    assert all(metrics == of_rank[0][0] for metrics, _ in of_rank)
    for _, state in of_rank[1:]:
        pairs = zip(tensors_of(state), tensors_of(of_rank[0][1]), strict=True)
        assert all(torch.equal(mine, first) for mine, first in pairs)
    wanted = expected(width, 3, period, momentum)
    for found, weight in zip(of_rank[0][1]["model"].values(), wanted, strict=True):
        assert torch.allclose(found, weight, atol=2e-5)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("width", [2, 4])
def test_averaged_after_each_step_it_is_synchronous(width):
    parallel = {"strategy": "local_sgd", "period": 1, "momentum": "average"}
    found = run_ranks(width, lambda group: states_after(group, 6, parallel))[0][0]
    assert of(found, "loss") == pytest.approx(of(curve(6), "loss"), abs=1e-4)


def test_averaged_less_often_it_is_another_way():
    def losses(**options: Any) -> tuple[float, ...]:
        found = run_ranks(2, lambda group: states_after(group, 2, {"strategy": "local_sgd", **options}))
        return tuple(of(found[0][0], "validation_loss"))

    assert losses() == losses(period=8, momentum="keep")
    assert len({losses(), losses(period=1), losses(momentum="average"), losses(period=7)}) == 4


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)


def nadam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=0.01)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("momentum", ["keep", "average"])
@pytest.mark.parametrize(
    "options",
    [{"optimizer": adam, "average": 0.9}, {"model": "cnn", "average": 0.9}, {"optimizer": nadam, "clip_norm": 0.1}],
    ids=["adam", "cnn", "nadam"],
)
def test_what_is_saved_is_one_and_continues_to_the_bit(options, momentum):
    """Two workers of three have no rows in the last step, so their optimizers count one step less in each epoch."""
    options = options | {"train": data(81), "accumulate": 2}
    parallel = {"strategy": "local_sgd", "period": 3, "momentum": momentum}
    whole = run_ranks(3, lambda group: states_after(group, 4, parallel, **options))
    begun = run_ranks(3, lambda group: states_after(group, 2, parallel, **options))
    for _, state in begun[1:]:
        pairs = zip(tensors_of(state), tensors_of(begun[0][1]), strict=True)
        assert all(torch.equal(mine, first) for mine, first in pairs)
    ended = run_ranks(3, lambda group: states_after(group, 2, parallel, begun[0][1], **options))
    assert begun[0][0] + ended[0][0] == whole[0][0]
    # and at another width
    more = run_ranks(2, lambda group: states_after(group, 1, parallel, begun[0][1], **options))
    assert more[0][0][0]["loss"] < begun[0][0][0]["loss"]


def test_counts_of_steps_stay_whole():
    parallel = {"strategy": "local_sgd", "period": 4}
    state = run_ranks(3, lambda group: states_after(group, 2, parallel, train=data(201), optimizer=adam))[2][1]
    assert {float(one["step"]) for one in state["optimizer"]["state"].values()} == {22.0}


class Branching(nn.Module):
    """The first worker has a branch of its own; one is nobody's, and one is frozen."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.branches = nn.ModuleList(nn.Linear(12, 5) for _ in range(2))
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.number = nn.Parameter(torch.tensor(0.1))

    def forward(self, inputs: Tensor) -> Any:
        return self.branches[self.rank](inputs + self.frozen(inputs)) * self.number


class BranchingTrainer(Small):
    def build(self, params: Mapping[str, Any]) -> Parts:
        with building:  # ranks are threads here, which share torch's generator
            torch.manual_seed(3)
            model = Branching(0 if self.group is None else min(self.group.rank, 1))
        return Parts(
            model,
            params["optimizer"](model),
            nn.functional.cross_entropy,
            data(),
            metrics={"accuracy": correct},
            batch_size=20,
        )


def before() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return Branching(0).state_dict()


@pytest.mark.parametrize("momentum", ["keep", "average"])
@pytest.mark.parametrize("optimizer", [made, adam])
def test_what_one_worker_alone_has_trained_counts_by_its_rows(optimizer, momentum):
    """Its momentum is the mean over the workers that have one: a worker that didn't train it says nothing of it."""

    def work(group: Group) -> Any:
        parallel = {"strategy": "local_sgd", "period": 3, "momentum": momentum}
        return states_after(group, 1, parallel, trainer=BranchingTrainer, optimizer=optimizer)[1]

    one, other, _ = run_ranks(3, work)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))
    start = before()
    for name, value in one["model"].items():
        stays = name.startswith(("unused", "frozen"))
        assert torch.equal(value, start[name]) == stays, name
    for state in one["optimizer"]["state"].values():
        assert "step" not in state or float(state["step"]) == 11.0
        assert all(tensor.isfinite().all() and tensor.any() for tensor in tensors_of(state))


class Odd(torch.optim.SGD):
    """Keeps what has no mean."""

    kept: Any = None

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["kept"] = self.kept


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (["a"], "got list as 'kept' of Odd on worker 1"),
        (torch.ones(3, dtype=torch.int8), r"tensor of torch.int8, \[3\] as"),
    ],
    ids=str,
)
def test_a_state_that_has_no_mean_is_refused_everywhere(kept, words):
    def work(group: Group) -> str:
        def optimizer(model: nn.Module) -> torch.optim.Optimizer:
            made = Odd(model.parameters(), lr=0.1)
            made.kept = kept if group.rank == 1 else None
            return made

        with pytest.raises(ConfigurationError, match=words) as raised:
            states_after(group, 1, {"strategy": "local_sgd"}, optimizer=optimizer)
        return str(raised.value)

    one, other = run_ranks(2, work)
    assert one == other


def test_a_layer_that_needs_all_workers_in_each_step_is_refused():
    with pytest.raises(ConfigurationError, match="can't be used with batch_norm: synchronized layers"):
        run_ranks(2, lambda g: states_after(g, 1, {"strategy": "local_sgd"}, model="cnn", batch_norm="sync"))


def test_workers_begin_with_the_weights_of_rank_0():
    def work(group: Group) -> Any:
        def optimizer(model: nn.Module) -> torch.optim.Optimizer:
            if group.rank == 1:
                torch.nn.init.zeros_(next(model.parameters()))
            return made(model)

        return states_after(group, 2, {"strategy": "local_sgd"}, optimizer=optimizer)[0]

    assert run_ranks(2, work)[1] == run_ranks(2, lambda group: states_after(group, 2, {"strategy": "local_sgd"})[0])[0]


@pytest.mark.parametrize(("lr", "rate"), [(None, 0.05), ("linear", 0.1)])
def test_the_rate_is_that_of_a_worker_s_own_step(lr, rate):
    scaling = {"batch": "per_worker", "warmup_epochs": 0, "lr": lr}
    trial = partial(FakeTrial, {}, scaling=scaling, parallel={"strategy": "local_sgd"})
    metrics = run_ranks(2, lambda group: Small(trial(group=group)).step())[0]
    assert metrics["global_batch"] == 40
    assert metrics["learning_rate"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 0}, "period must be a whole number of at least 1"),
        ({"momentum": "kept"}, "one of keep, average, got 'kept'"),
    ],
)
def test_options_that_can_not_be_used(options, words):
    with pytest.raises(ConfigurationError, match=words):
        run_ranks(2, lambda group: strategy_of({"strategy": "local_sgd", **options}, group))
