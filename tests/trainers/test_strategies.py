"""What a trainer asks of how several ranks train it, and how that is named."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lanes.probe import replica
from hpsearch_trainers.strategies import STRATEGIES, Options, Strategy, StrategyCapabilities, strategy_of
from hpsearch_trainers.strategies.strategy import Alone
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial, Small


def test_one_rank_has_nothing_to_agree_on():
    assert type(strategy_of({}, None)) is Alone
    assert type(strategy_of({"strategy": "allreduce"}, None)) is Alone
    assert run_ranks(2, lambda group: strategy_of({"strategy": None}, group).name) == ["allreduce"] * 2


def test_a_strategy_that_is_not_known_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"^parallel.strategy must be one of allreduce.*, got 'alreduce'; did"):
        strategy_of({"strategy": "alreduce"}, None)
    assert all(name == kind.name for name, kind in STRATEGIES.items())


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "allreduce"])
def test_too_few_ranks_for_a_strategy_are_refused(name):
    with pytest.raises(ConfigurationError, match=rf"parallel.strategy {name} takes 2 workers or more, got 1: raise"):
        strategy_of({"strategy": name}, None)


def test_a_strategy_defines_how_weights_are_updated_and_what_they_are_after_an_epoch():
    assert Strategy.__abstractmethods__ == {"step", "end_epoch"}


def test_what_a_strategy_refuses_is_named_with_its_reason():
    class Picky(Alone):
        name = "picky"
        capabilities = StrategyCapabilities(refuses={"accumulate": "it has no memory to save"})

    parts = Small(FakeTrial()).parts
    Picky(Options(), None).check(parts)
    words = "^parallel.strategy picky can't be used with accumulate: it has no memory to save$"
    with pytest.raises(ConfigurationError, match=words):
        Picky(Options(), None).check(dataclasses.replace(parts, accumulate=2))


@pytest.mark.parametrize("batch_norm", ["local", "sync"])
def test_a_failed_epoch_ends_those_of_the_others_while_its_rank_lives_on(batch_norm):
    """Layers that meet in a group of their own would wait there, where nobody says that one won't come."""
    ended = threading.Event()

    def train(group: Group) -> str:
        parts: dict[str, Any] = {"model": "cnn", "batch_norm": batch_norm}
        if group.rank == 1:
            parts["loss"] = fail
        trainer = Small(FakeTrial(parts, group))
        try:
            trainer.step()
        except Exception as error:
            if group.rank == 1:
                group.close(error)  # as a worker does at once, and it is long until the trainer itself goes
                assert ended.wait(100)
            else:
                ended.set()
            return type(error).__name__
        return "nothing"

    assert run_ranks(2, train, timeout=60.0) == ["PeerLost", "ArithmeticError"]


@pytest.mark.parametrize(("given", "number"), [({}, 8), ({"period": None}, 8), ({"period": 1}, 1)])
def test_options_are_whole_numbers(given, number):
    assert Options.from_dict(given).integer("period", 8) == number


@pytest.mark.parametrize("given", [0, -1, 1.0, True, "4"])
def test_options_that_are_no_whole_numbers_are_refused(given):
    with pytest.raises(
        ConfigurationError, match=f"parallel.period must be a whole number of at least 1, got {given!r}"
    ):
        Options.from_dict({"period": given}).integer("period", 8)


def test_options_are_words():
    options = Options.from_dict({"strategy": "pipeline", "schedule": "1f1b"})
    assert options.choice("schedule", ("gpipe", "1f1b")) == "1f1b"
    assert options.choice("momentum", ("keep", "average")) == "keep"
    with pytest.raises(ConfigurationError, match=r"parallel.schedule must be one of gpipe, fifo, got '1f1b'"):
        options.choice("schedule", ("gpipe", "fifo"))


def test_what_one_strategy_saved_is_not_given_to_another():
    class Counting(Alone):
        name = "counting"
        given: Any = None

        def state_dict(self) -> dict[str, Any]:
            return {"count": 3}

        def load_state_dict(self, state: Any) -> None:
            self.given = dict(state)

    def of(strategy: Strategy) -> Small:
        trainer = Small(FakeTrial())
        trainer._strategy = strategy
        strategy.bind(trainer._trained())
        return trainer

    saved = of(Counting(Options(), None)).state_dict()
    assert saved["strategy"] == {"name": "counting", "count": 3}
    assert "strategy" not in Small(FakeTrial()).state_dict()
    same, other = Counting(Options(), None), Counting(Options(), None)
    of(same).load_state_dict(saved)
    assert same.given == {"name": "counting", "count": 3}
    of(other).load_state_dict({**saved, "strategy": {**saved["strategy"], "name": "another"}})
    assert other.given == {}
    Small(FakeTrial()).load_state_dict(saved)


def test_a_model_put_in_place_of_another_is_trained_and_a_copy_leaves_no_trace():
    trainer = Small(FakeTrial())
    copied = replica(trainer)
    copied.step()
    assert copied._strategy.trained.model is copied.model
    assert trainer._strategy.trained.model is trainer.model
    trainer.model = Small(FakeTrial()).model
    trainer.optimizer = replace_parameters(trainer)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    trainer.step()
    assert not all(one.equal(other) for one, other in zip(before, trainer.model.parameters(), strict=True))


def test_models_go_with_their_trainers():
    """A circle of references would keep them until the collector comes by, and a pack then lacks the memory."""
    trainer = Small(FakeTrial())
    copied = replica(trainer)
    gc.collect()
    gc.disable()
    try:
        copied.step()
        trainer.step()
        models = weakref.ref(copied.model), weakref.ref(trainer.model)
        del copied, trainer
        assert [model() for model in models] == [None, None]
    finally:
        gc.enable()


def fail(output: Any, target: Any) -> Any:
    """Raise an error instead of returning a loss."""
    raise ArithmeticError("no loss today")


def replace_parameters(trainer: Small) -> torch.optim.Optimizer:
    """Return an optimizer for the model that the trainer has now."""
    return torch.optim.SGD(trainer.model.parameters(), trainer.optimizer.defaults["lr"])
