"""One copy of the weights: whose it is when, what a step does to it, and what becomes of a worker's own."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group, MismatchError
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.strategies import hogwild, strategy_of
from hpsearch_trainers.strategies.strategy import Trained
from tests.comm.leftovers import shared_memory_files
from tests.comm.process_ranks import ProcessRanks
from tests.comm.shm.test_shm_segment import mapped
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small, data, mlp

BOTH = ("hogwild", "locked")


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    before = shared_memory_files()
    with ProcessRanks("tests.trainers.strategies.one_memory_ranks") as server:
        yield server
    assert shared_memory_files() <= before


@pytest.fixture(params=BOTH)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def small(group: Group | None, strategy: str = "hogwild", parent: Any = None, **params: Any) -> Small:
    trial = FakeTrial(params, group, parallel={"strategy": strategy} if group is not None else {})
    trial.parent = None if parent is None else 3
    return Small(trial)


def of_optimizer(trainer: Small) -> list[Any]:
    """Return an optimizer's state as numbers."""
    return [
        [name, value.tolist() if isinstance(value, Tensor) else value]
        for state in trainer.optimizer.state_dict()["state"].values()
        for name, value in state.items()
    ]


@pytest.mark.exhaustive
def test_locks_lose_no_step(ranks):
    for outcome in ranks.call(2, "counted", "locked", 400, timeout=60.0):
        assert outcome.result == [[800.0]] * 5, outcome


def test_without_locks_no_weight_gets_more_than_there_were_steps(ranks):
    for outcome in ranks.call(2, "counted", "hogwild", 400, timeout=60.0):
        assert all(400.0 <= value <= 800.0 for values in outcome.result for value in values), outcome


def test_a_sparse_step_touches_the_rows_that_were_looked_up_alone(ranks, strategy):
    """What workers wrote to other rows at the same moment might be lost."""
    for outcome in ranks.call(3, "looked_up", strategy, True, timeout=60.0):
        assert outcome.result == 0, outcome


@pytest.mark.parametrize("optimizer", ["Adagrad", "SparseAdam"])
def test_the_other_optimizers_for_sparse_gradients_touch_those_rows_alone(ranks, optimizer):
    outcomes = ranks.call(2, "looked_up", "hogwild", True, optimizer, timeout=60.0)
    assert [(outcome.code, outcome.error) for outcome in outcomes] == [(0, "")] * 2


def test_a_dense_step_touches_all_rows(ranks, strategy):
    """So the test before this one would see it."""
    assert -signal.SIGSEGV in {outcome.code for outcome in ranks.call(2, "looked_up", strategy, False)}


def test_a_worker_that_dies_while_it_writes_ends_the_others(ranks, strategy):
    outcomes = ranks.call(3, "killed_while_it_writes", strategy, 1, timeout=60.0)
    assert outcomes[1].code == -signal.SIGKILL
    for outcome in outcomes[::2]:
        assert (outcome.error, outcome.rank) == ("PeerLost", 1), outcome


def in_the_first_step(trainer: Small, act: Callable[[], None]) -> None:
    """Do something in the next step's forward pass: under no lock."""

    def once(*_: Any) -> None:
        handle.remove()
        act()

    handle = trainer.model.register_forward_pre_hook(once)


def seen_by_the_other(group: Group, trainer: Small) -> list[float]:
    """Return the extremes of a weight on this rank after rank 1 has written 3 to it; collective."""
    weight = next(trainer.model.parameters()).detach()
    group.barrier()
    if group.rank == 1:
        weight.fill_(3.0)
    group.barrier()
    found = [float(weight.min()), float(weight.max())]
    group.barrier()
    return found


def test_in_an_epoch_all_workers_have_the_same_weights_and_between_two_a_copy_each(strategy):
    def work(group: Group) -> tuple[Any, ...]:
        trainer = small(group, strategy)
        found: list[Any] = []

        def look() -> None:
            found.append(seen_by_the_other(group, trainer))
            copied = next(copy.deepcopy(trainer.model).parameters()).detach()
            group.barrier()
            with torch.no_grad():
                next(trainer.model.parameters()).zero_()
            found.append(float(copied.max()))

        for _ in range(2):
            in_the_first_step(trainer, look)
            trainer.step()
        before = next(trainer.model.parameters()).clone()
        seen_by_the_other(group, trainer)
        return found, group.rank == 1 or before.equal(next(trainer.model.parameters()))

    assert run_ranks(2, work) == [([[3.0, 3.0], 3.0] * 2, True)] * 2


def test_what_all_do_to_the_weights_between_two_epochs_is_done_once(strategy):
    def work(group: Group) -> list[float]:
        trainer = small(group, strategy)
        trainer.step()
        before = next(trainer.model.parameters()).detach().clone()
        with torch.no_grad():
            next(trainer.model.parameters()).mul_(0.5)
        found: list[float] = []

        def look() -> None:
            group.barrier()
            found.append(float((next(trainer.model.parameters()).detach() / before).mean()))
            group.barrier()

        in_the_first_step(trainer, look)
        trainer.step()
        return found

    assert run_ranks(2, work) == [[pytest.approx(0.5)]] * 2


class Elsewhere(nn.Linear):
    """Puts other memory in the place of its weight's."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data = self.weight.data.clamp(-1.0, 1.0)
        return super().forward(inputs)


def test_a_model_that_leaves_the_shared_memory_is_refused(strategy, monkeypatch):
    monkeypatch.setitem(MODELS, "elsewhere", lambda: nn.Sequential(nn.Linear(12, 8), Elsewhere(8, 5)))

    def work(group: Group) -> None:
        small(group, strategy, model="elsewhere").step()

    with pytest.raises(ConfigurationError, match=r"got other memory in the place of 1.weight: let the model write"):
        run_ranks(2, work)


def test_a_loaded_state_goes_into_the_weights_that_are_trained(strategy):
    def work(group: Group) -> list[float]:
        trainer = small(group, strategy)
        trainer.step()
        state = copy.deepcopy(trainer.state_dict())
        state["model"] = {name: torch.zeros_like(value) for name, value in state["model"].items()}
        group.barrier()
        trainer.load_state_dict(state)
        found = [float(parameter.detach().abs().max()) for parameter in trainer.model.parameters()]
        trainer.step()
        assert trainer.optimizer.param_groups[0]["params"][0].data_ptr() == next(trainer.model.parameters()).data_ptr()
        return found

    assert run_ranks(2, work) == [[0.0] * 4] * 2


def test_another_model_in_its_place_is_shared_as_well(strategy):
    def work(group: Group) -> tuple[Any, ...]:
        trainer = small(group, strategy)
        first = trainer.step()
        trainer.model = small(None).model
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.05, momentum=0.9)
        found: list[Any] = []
        before = next(trainer.model.parameters()).detach().clone()

        def look() -> None:
            found.append(seen_by_the_other(group, trainer))
            if group.rank == 0:
                next(trainer.model.parameters()).detach().copy_(before)
            group.barrier()

        in_the_first_step(trainer, look)
        return first["loss"], trainer.step()["loss"], found

    (first, again, found), _ = run_ranks(2, work)
    assert found == [[3.0, 3.0]]
    assert first == pytest.approx(again, abs=0.5)


def test_a_model_may_be_put_in_place_on_one_rank_alone(strategy):
    """The others' is shared anew with it."""

    def work(group: Group) -> float:
        trainer = small(group, strategy)
        trainer.step()
        if group.rank == 1:
            trainer.model = small(None).model
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.05, momentum=0.9)
        return trainer.step()["validation_loss"]

    first, second = run_ranks(2, work)
    assert first == second


def test_what_a_child_inherits_is_what_one_worker_inherits(strategy):
    parent = small(None)
    parent.step()
    state = copy.deepcopy(parent.state_dict())

    def child(group: Group | None) -> list[Any]:
        trial = FakeTrial({}, group, parallel={"strategy": strategy} if group is not None else {})
        trial.parent, trial.parent_checkpoint = 3, state  # type: ignore[attr-defined]
        trainer = Small(trial)
        if group is not None:
            trainer._strategy.start_epoch(trainer._trained(), 0)
            group.barrier()
        return [parameter.tolist() for parameter in trainer.model.parameters()]

    assert run_ranks(2, child) == [child(None)] * 2


class Alike(nn.Module):
    """Weights that share memory, in an order of dimensions of their own, frozen or of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        layers: Any = mlp()
        layers[0].weight = nn.Parameter(torch.randn(12, 16).t())
        self.model = self.again = layers
        self.twin = nn.Parameter(layers[0].weight.detach()[:4, :3], requires_grad=False)
        self.register_buffer("seen", layers[2].bias.detach())
        self.brief = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
        self.whole = nn.Parameter(torch.arange(5), requires_grad=False)
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, inputs: Tensor) -> Any:
        return self.again(inputs)


def test_weights_that_share_memory_still_do_and_keep_their_strides(strategy, monkeypatch):
    monkeypatch.setitem(MODELS, "alike", Alike)

    def work(group: Group) -> list[list[float]]:
        trainer = small(group, strategy, model="alike")
        before = [(one.shape, one.stride(), one.dtype, one.requires_grad) for one in trainer.model.parameters()]
        trainer.step()
        assert before == [(one.shape, one.stride(), one.dtype, one.requires_grad) for one in trainer.model.parameters()]
        model: Any = trainer.model
        assert model.again is model.model
        assert model.twin.equal(model.model[0].weight[:4, :3])
        assert model.seen.equal(model.model[2].bias)
        assert (model.brief.tolist(), model.whole.tolist()) == ([1.0] * 3, list(range(5)))
        return [parameter.tolist() for parameter in trainer.model.parameters()]

    first, second = run_ranks(2, work)
    assert first == second


def test_a_file_with_one_layer_holds_no_more():
    def work(group: Group) -> int:
        trainer = small(group)
        trainer.step()
        file = io.BytesIO()
        torch.save(trainer.model[2].bias, file)  # type: ignore[index]
        return len(file.getvalue())

    alone = io.BytesIO()
    torch.save(nn.Parameter(torch.zeros(5)), alone)
    assert max(run_ranks(2, work)) < len(alone.getvalue()) + 200


def test_memory_goes_with_the_trainers(strategy):
    gc.collect()
    before = mapped()

    def work(group: Group) -> list[Any]:
        trainer = small(group, strategy)
        trainer.step()
        gc.collect()
        gc.disable()
        try:
            model = weakref.ref(trainer.model)
            del trainer
            return [model()]
        finally:
            gc.enable()

    assert run_ranks(2, work) == [[None]] * 2
    gc.collect()
    assert mapped() == before


def test_each_worker_goes_on_with_its_own_state(strategy):
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    saved: dict[int, Any] = {}
    saved_again: dict[int, Any] = {}

    def begin(group: Group) -> list[Any]:
        trainer = small(group, strategy, optimizer=adam)
        trainer.step()
        saved[group.rank] = copy.deepcopy(trainer.state_dict())
        return of_optimizer(trainer)

    def go_on(group: Group) -> list[Any]:
        trainer = small(group, strategy, optimizer=adam)
        trainer.load_state_dict(copy.deepcopy(saved[0]))
        if group.size == 3:
            saved_again[group.rank] = copy.deepcopy(trainer.state_dict())
        return of_optimizer(trainer)

    begun = run_ranks(3, begin)
    assert begun[0] != begun[1] != begun[2]
    assert run_ranks(3, go_on) == begun
    assert same_bits(saved_again[0], saved[0])
    assert run_ranks(2, go_on) == [begun[0]] * 2  # of another number of workers, all go on with rank 0's
    assert "strategy" not in saved[1]


def test_a_fork_keeps_its_own_settings(strategy):
    def sgd(rate: float, momentum: float) -> Any:
        return lambda model: torch.optim.SGD(model.parameters(), rate, momentum)

    saved: dict[int, Any] = {}

    def begin(group: Group) -> None:
        trainer = small(group, strategy, optimizer=sgd(0.1, 0.9))
        trainer.step()
        saved[group.rank] = copy.deepcopy(trainer.state_dict())

    def fork(group: Group) -> tuple[Any, ...]:
        trainer = small(group, strategy, 3, optimizer=sgd(0.02, 0.0))
        trainer.load_state_dict(copy.deepcopy(saved[0]))
        trainer.step()
        held = trainer.optimizer.param_groups[0]
        return held["lr"], held["momentum"]

    run_ranks(2, begin)
    assert run_ranks(2, fork) == [(0.02, 0.0)] * 2


def test_a_moving_average_is_the_same_on_all(strategy):
    def work(group: Group) -> Any:
        trainer = small(group, strategy, average=0.9, model="cnn")
        trainer.step()
        assert trainer._average is not None
        return [value.tolist() for value in trainer._average.state_dict().values()]

    first, second = run_ranks(2, work)
    assert first == second


def test_a_worker_without_rows_takes_no_step(strategy):
    """Of five rows in batches of four, the last one is the first worker's."""

    def work(group: Group) -> int:
        steps = 0

        def count(*_: Any) -> None:
            nonlocal steps
            steps += 1

        trainer = small(group, strategy, train=data(5), batch_size=4)
        trainer.optimizer.register_step_post_hook(count)
        trainer.step()
        return steps

    assert run_ranks(2, work) == [2, 1]


def test_the_rate_is_that_of_a_workers_own_batch(strategy):
    """However many of them step at once."""

    def work(group: Group) -> list[float]:
        trial = FakeTrial({}, group, {"batch": "per_worker", "warmup_epochs": 0}, parallel={"strategy": strategy})
        metrics = Small(trial).step()
        return [metrics["learning_rate"], metrics["global_batch"]]

    assert run_ranks(3, work) == [[0.05, 60.0]] * 3


def test_a_step_that_fails_leaves_the_optimizer_whole(monkeypatch):
    monkeypatch.setattr(hogwild, "_BUCKET", 64)

    def work(group: Group) -> int:
        trainer = small(group, "locked", optimizer=lambda model: torch.optim.SparseAdam(list(model.parameters())))
        with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
            trainer.step()
        return len(trainer.optimizer.param_groups[0]["params"])

    assert run_ranks(2, work) == [4, 4]


def test_an_optimizer_that_needs_all_weights_at_once_is_refused_under_locks():
    class Own(torch.optim.SGD):
        pass

    class Says(Own):
        trains_each_parameter = True

    def work(group: Group) -> str:
        small(group, "hogwild", optimizer=lambda model: Own(model.parameters(), 0.1)).step()
        small(group, "locked", optimizer=lambda model: Says(model.parameters(), 0.1)).step()
        with pytest.raises(ConfigurationError) as caught:
            small(group, "locked", optimizer=lambda model: Own(model.parameters(), 0.1))
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "locked can't be used with an optimizer that looks over all parameters: it steps with the" in text


def test_workers_on_several_hosts_are_refused(strategy):
    def work(group: Group) -> str:
        with pytest.raises(ConfigurationError) as caught:
            strategy_of({"strategy": strategy}, group)
        return str(caught.value)

    for text in run_ranks(3, work, hosts=["a", "b", "a"]):
        assert f"parallel.strategy {strategy} needs all workers on one host" in text
        assert "got [[0, 2], [1]]: lower resources.workers_per_trial to what a host has" in text


def test_a_model_elsewhere_than_in_the_hosts_memory_is_refused(strategy):
    def work(group: Group) -> str:
        model = nn.Linear(2, 2, device="meta")
        with pytest.raises(ConfigurationError) as caught:
            strategy_of({"strategy": strategy}, group).bind(
                Trained(model, torch.optim.SGD(model.parameters(), 0.1), contextlib.nullcontext)
            )
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "needs the weights in the host's memory, which all workers write to, got a model on meta" in text


def test_workers_that_have_built_different_models_are_told(strategy, monkeypatch):
    monkeypatch.setitem(MODELS, "other", lambda: nn.Linear(12, 5))

    def work(group: Group) -> str:
        with pytest.raises(MismatchError) as caught:
            small(group, strategy, model="mlp" if group.rank == 0 else "other")
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "must be the same on every rank; the first difference: rank 0 has tensor 0.weight" in text
