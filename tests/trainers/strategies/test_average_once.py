"""Workers that train apart, and the mean that each report shows, beside copies of the model in one process."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from tests.comm.thread_ranks import run_ranks
from tests.trainers.strategies.local_workers import Copies, states_after, tensors_of
from tests.trainers.test_trainer import MODELS, FakeTrial, Small, building, data

APART = {"strategy": "average_once"}
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return SGD(model.parameters())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("model", "width", "rows"), [("mlp", 2, 203), ("mlp", 4, 203), ("cnn", 3, 207)])
def test_each_goes_its_own_way_and_the_mean_is_shown(model, width, rows):
    """203 rows in batches of 20: in the last step one of four workers has none. Buffers are apart, too."""
    found = run_ranks(width, lambda group: states_after(group, 3, APART, model=model, train=data(rows)))[0][1]
    torch.manual_seed(3)
    copies, seen = Copies(MODELS[model](), width, sgd, rows=rows), [0] * width
    for epoch in range(3):
        for step in range(copies.shards[0].steps):
            seen = [a + b for a, b in zip(seen, copies.step(epoch, step), strict=True)]
    for one, own in zip(copies.models, found["strategy"]["workers"], strict=True):
        for name, wanted in one.state_dict().items():
            assert torch.allclose(own["model"][name], wanted, atol=1e-4), name
    for (name, _), wanted in zip(copies.models[0].named_parameters(), copies.mean(copies.weights(), seen), strict=True):
        assert torch.allclose(found["model"][name].double(), wanted, atol=1e-4)
    if model == "cnn":
        means = torch.stack([one.state_dict()["2.running_mean"] for one in copies.models]).mean(0)
        assert torch.allclose(found["model"]["2.running_mean"], means, atol=1e-4)


OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": adam, "average": 0.9, "train": data(81)},  # the last step has one row
    "cnn": {"model": "cnn", "average": 0.9, "accumulate": 2},
}


@pytest.mark.parametrize("options", ["adam", pytest.param("cnn", marks=pytest.mark.exhaustive)])
def test_each_goes_on_from_its_own_weights_to_the_bit(options, tmp_path):
    whole = run_ranks(3, lambda group: states_after(group, 4, APART, **OPTIONS[options]))
    begun = run_ranks(3, lambda group: states_after(group, 2, APART, **OPTIONS[options]))
    assert all(metrics == begun[0][0] for metrics, _ in begun)
    for _, state in begun[1:]:  # all else that is saved is one
        assert "strategy" not in state
        one = {name: value for name, value in begun[0][1].items() if name != "strategy"}
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(state), tensors_of(one), strict=True))
    own = [worker["model"] for worker in begun[0][1]["strategy"]["workers"]]
    assert not any(torch.equal(own[0][name], own[1][name]) for name in own[0] if name.endswith("weight"))
    saved = tmp_path / "state"
    torch.save(begun[0][1], saved)

    def go_on(group: Group) -> Any:
        return states_after(group, 2, APART, torch.load(saved, weights_only=True), **OPTIONS[options])

    ended = run_ranks(3, go_on)
    assert begun[0][0] + ended[0][0] == whole[0][0]
    pairs = zip(tensors_of(ended[0][1]), tensors_of(whole[0][1]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def saved_after(epochs: int, width: int = 2, **options: Any) -> Any:
    return run_ranks(width, lambda group: states_after(group, epochs, APART, **options))[0][1]


def test_another_number_of_workers_is_refused():
    state = saved_after(1)
    with pytest.raises(ConfigurationError, match=r"average_once must go on with as many .* with, 2, got 3: each has"):
        run_ranks(3, lambda group: states_after(group, 1, APART, state))


def test_others_go_on_from_the_mean(tmp_path: Path):
    metrics, state = run_ranks(2, lambda group: states_after(group, 3, APART))[0]
    alone = Small(FakeTrial())
    alone.load_state_dict(copy.deepcopy(state))
    assert alone.validate()["validation_loss"] == pytest.approx(metrics[-1]["validation_loss"], rel=1e-5)
    of_workers = [worker["optimizer"] for worker in state["strategy"]["workers"]]
    for place, kept in state["optimizer"]["state"].items():
        velocities = [one[place]["momentum_buffer"] for one in of_workers]
        assert torch.allclose(kept["momentum_buffer"], torch.stack(velocities).mean(0), atol=1e-2)
        assert not torch.equal(kept["momentum_buffer"], velocities[0])
    for strategy in ("allreduce", "local_sgd"):
        more = run_ranks(2, lambda g, word=strategy: states_after(g, 1, {"strategy": word}, state))  # type: ignore[misc]
        assert more[0][0][0]["loss"] < metrics[0]["loss"]
        assert "strategy" not in more[0][1]


def test_it_goes_on_from_what_others_saved_as_a_common_start():
    """A state of its own that is loaded before leaves nothing behind."""
    mine, start = saved_after(1), Small(FakeTrial())
    start.step()
    other = copy.deepcopy(start.state_dict())

    def work(group: Group) -> Any:
        trainers = [Small(FakeTrial({}, group, parallel=APART)) for _ in range(2)]
        trainers[0].load_state_dict(copy.deepcopy(mine))
        losses = []
        for trainer in trainers:
            trainer.load_state_dict(copy.deepcopy(other))
            losses.append(trainer.step()["validation_loss"])
        return losses

    one, same = run_ranks(2, work)[0]
    assert one == same


@pytest.mark.parametrize("begins", [False, True])
def test_a_fork_goes_on_from_each_worker_s_weights_with_its_own_settings(begins):
    state = saved_after(2)
    optimizer = adam if begins else partial_sgd

    def work(group: Group) -> Any:
        trainer = Small(FakeTrial({"optimizer": optimizer}, group, parallel=APART, parent=3))
        trainer.load_state_dict(copy.deepcopy(state))
        trainer._strategy.start_epoch(trainer._trained(), trainer.epoch)
        own = state["strategy"]["workers"][group.rank]
        for name, value in trainer.model.state_dict().items():
            assert torch.equal(value, own["model"][name])
        held = trainer.optimizer.state_dict()
        if begins:
            assert held["state"] == {}
        else:
            assert held["param_groups"][0]["momentum"] == 0.5
            for place, kept in own["optimizer"].items():
                assert torch.equal(held["state"][place]["momentum_buffer"], kept["momentum_buffer"])
        return trainer.step()["loss"]

    assert all(loss > 0 for loss in run_ranks(2, work))


def partial_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return SGD(model.parameters(), momentum=0.5)


def test_a_model_put_in_place_of_another_is_a_new_start():
    def work(group: Group) -> Any:
        trainer = Small(FakeTrial({}, group, parallel=APART))
        trainer.step()
        with building:
            torch.manual_seed(11)
            trainer.model = MODELS["mlp"]()
        trainer.optimizer = SGD(trainer.model.parameters(), lr=0.0)
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.step()
        pairs = zip(tensors_of(before), tensors_of(trainer.model.state_dict()), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)

    run_ranks(2, work)


def test_what_is_changed_of_what_is_shown_begins_anew_and_the_rest_goes_on():
    def work(group: Group) -> None:
        trainer: Any = Small(FakeTrial({}, group, parallel=APART))
        trainer.step()
        own = copy.deepcopy(trainer._strategy._own_state)
        with torch.no_grad():
            trainer.model[2].bias.fill_(group.rank + 1.0)
        first, *_, last = trainer.optimizer.param_groups[0]["params"]
        trainer.optimizer.state[last]["momentum_buffer"].zero_()
        trainer._strategy.start_epoch(trainer._trained(), trainer.epoch)
        found = trainer.model.state_dict()
        assert found.pop("2.bias").tolist() == [1.0] * 5
        assert all(torch.equal(value, own["model"][name]) for name, value in found.items())
        assert not trainer.optimizer.state[last]["momentum_buffer"].any()
        assert torch.equal(trainer.optimizer.state[first]["momentum_buffer"], own["optimizer"][0]["momentum_buffer"])

    run_ranks(2, work)


def test_few_rows_leave_a_worker_that_never_trains_out_of_the_mean():
    """Two rows for three workers: the third one's weights stay the common start, and count for nothing."""
    state = run_ranks(3, lambda group: states_after(group, 3, APART, train=data(2)))[0][1]
    own = [worker["model"] for worker in state["strategy"]["workers"]]
    for name, value in state["model"].items():
        assert torch.allclose(value, (own[0][name] + own[1][name]) / 2, atol=1e-6)
    assert state["strategy"]["workers"][2]["optimizer"] == {}
