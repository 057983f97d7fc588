"""Trainers with methods of their own that save and load leave to Trainer's what a strategy keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lanes.bits import same_bits
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial, Small, curve, of


class Own(Small):
    """Saves and loads what it thinks of."""

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]


class More(Small):
    """Keeps something beside what is kept."""

    def state_dict(self) -> dict[str, Any]:
        return {"all": super().state_dict(), "more": 1}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state["all"])


class Drops(Small):
    """Saves and loads a choice of what Trainer's does."""

    NEEDED: tuple[str, ...] = ("model", "optimizer", "optimizer_class", "epoch", "stages")

    def _chosen(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: state[name] for name in self.NEEDED}


class DropsInSaving(Drops):
    def state_dict(self) -> dict[str, Any]:
        return self._chosen(super().state_dict())


class DropsInLoading(Drops):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(self._chosen(state))


KEEPING = ["average_once", "downpour", "hogwild", "locked"]


class Loads(Own):
    """Saves all, and loads a choice of it by itself."""

    def state_dict(self) -> dict[str, Any]:
        return Small.state_dict(self)


class Saves(Own):
    """Saves a choice by itself, of which Trainer's loads what there is."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "optimizer_class": "SGD", "stages": [[0.0, 1.0]]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        Small.load_state_dict(self, state)


@pytest.mark.parametrize("strategy", KEEPING)
@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (Own, r"load_state_dict must call super\(\).*strategy {}, .* `epoch` 1 whose strategy has trained or loaded 0"),
        (
            Loads,
            r"load_state_dict must call super\(\).*strategy {}, .* `epoch` 1 whose strategy has trained or loaded 0",
        ),
        (Saves, r"Saves.state_dict must keep all that .*strategy {}, .* got a state without its `strategy`"),
    ],
)
def test_what_a_strategy_keeps_must_be_saved_and_loaded(strategy, trainer, words):
    saved = saved_after_an_epoch(trainer, strategy)

    def go_on(group: Group) -> None:
        resumed = trainer(FakeTrial({}, group, parallel={"strategy": strategy}))
        resumed.load_state_dict(copy.deepcopy(saved))
        resumed.step()

    with pytest.raises(ConfigurationError, match=words.format(strategy)):
        run_ranks(2, go_on)


@pytest.mark.parametrize("strategy", KEEPING)
def test_more_may_be_saved_beside_it(strategy):
    saved: dict[int, Any] = {}

    def begin(group: Group) -> None:
        trainer = More(FakeTrial({}, group, parallel={"strategy": strategy}))
        trainer.step()
        saved[group.rank] = copy.deepcopy(trainer.state_dict())

    def go_on(group: Group) -> Any:
        trainer = More(FakeTrial({}, group, parallel={"strategy": strategy}))
        trainer.load_state_dict(saved[0])
        return trainer.state_dict()

    run_ranks(2, begin)
    assert same_bits(run_ranks(2, go_on)[0], saved[0])


def saved_after_an_epoch(trainer: type[Small], strategy: str) -> Any:
    def work(group: Group) -> Any:
        made = trainer(FakeTrial({}, group, parallel={"strategy": strategy}))
        made.step()
        return copy.deepcopy(made.state_dict())

    return run_ranks(2, work)[0]


@pytest.mark.parametrize("strategy", KEEPING)
@pytest.mark.parametrize("trainer", [DropsInSaving, DropsInLoading])
def test_what_a_strategy_keeps_must_not_be_dropped(strategy, trainer):
    saved = saved_after_an_epoch(trainer, strategy)

    def go_on(group: Group, parent: int | None = None) -> int:
        resumed = trainer(FakeTrial({}, group, parallel={"strategy": strategy}, parent=parent))
        resumed.load_state_dict(copy.deepcopy(saved))
        return int(resumed.epoch)

    words = rf"{trainer.__name__}.*must keep all that .* under parallel.strategy {strategy}, .* without its `strategy`"
    with pytest.raises(ConfigurationError, match=words):
        run_ranks(2, go_on)
    assert run_ranks(2, lambda group: go_on(group, parent=3)) == [1, 1]  # of another trial a fork takes what it likes


class Chooses(DropsInLoading):
    NEEDED = (*Drops.NEEDED, "strategy")


@pytest.mark.parametrize(("trainer", "entry"), [(Small, {}), (Chooses, {"strategy": {}})])
def test_what_is_kept_may_come_from_another_strategy(trainer, entry):
    """A trainer that leaves things out says that there is none."""
    saved = saved_after_an_epoch(Small, "local_sgd") | entry

    def go_on(group: Group) -> int:
        resumed = trainer(FakeTrial({}, group, parallel={"strategy": "downpour"}))
        resumed.load_state_dict(copy.deepcopy(saved))
        resumed.step()
        return int(resumed.epoch)

    assert run_ranks(2, go_on) == [2, 2]


@pytest.mark.parametrize("strategy", ["", "allreduce", "local_sgd", "pipeline"])
def test_others_save_and_load_as_they_like(strategy):
    def work(group: Group | None) -> list[Any]:
        trainer, other = (
            Own(FakeTrial({}, group, parallel={"strategy": strategy} if strategy else {})) for _ in range(2)
        )
        begun = trainer.step()
        other.load_state_dict(copy.deepcopy(trainer.state_dict()))
        return of([begun, other.step()], "loss")

    found = run_ranks(2, work)[0] if strategy else work(None)
    assert found == pytest.approx(of(curve(2), "loss"), abs=1e-2 if strategy == "local_sgd" else 1e-5)
