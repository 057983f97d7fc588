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

    NEEDED = ("model", "optimizer", "optimizer_class", "epoch", "stages")

    def _chosen(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: state[name] for name in self.NEEDED}


class DropsInSaving(Drops):
    def state_dict(self) -> dict[str, Any]:
        return self._chosen(super().state_dict())


class DropsInLoading(Drops):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(self._chosen(state))


KEEPING = ["average_once", "downpour", "hogwild", "locked"]


@pytest.mark.parametrize("strategy", KEEPING)
@pytest.mark.parametrize("name", ["state_dict", "load_state_dict"])
def test_what_a_strategy_keeps_must_be_saved_and_loaded(strategy, name):
    def work(group: Group) -> None:
        trainer = Own(FakeTrial({}, group, parallel={"strategy": strategy}))
        arguments = [Small(FakeTrial()).state_dict()] if name == "load_state_dict" else []
        getattr(trainer, name)(*arguments)

    with pytest.raises(
        ConfigurationError, match=rf"Own.{name} must call super\(\).{name}\(.*strategy {strategy}, which"
    ):
        run_ranks(2, work)


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
def test_what_a_strategy_keeps_must_not_be_dropped_in_saving(strategy):
    with pytest.raises(
        ConfigurationError,
        match=rf"DropsInSaving.state_dict must return all that .* {strategy}, .* without its `strategy`",
    ):
        saved_after_an_epoch(DropsInSaving, strategy)


@pytest.mark.parametrize("strategy", KEEPING)
def test_what_a_strategy_keeps_must_not_be_dropped_in_loading(strategy):
    saved = saved_after_an_epoch(Small, strategy)

    def go_on(group: Group, parent: int | None = None) -> int:
        trainer = DropsInLoading(FakeTrial({}, group, parallel={"strategy": strategy}, parent=parent))
        trainer.load_state_dict(copy.deepcopy(saved))
        return trainer.epoch

    with pytest.raises(
        ConfigurationError, match=r"DropsInLoading.load_state_dict must call super\(\).* without its `strategy`"
    ):
        run_ranks(2, go_on)
    assert run_ranks(2, lambda group: go_on(group, parent=3)) == [1, 1]  # of another trial a fork takes what it likes


def test_what_is_kept_may_come_from_another_strategy_or_be_dropped_for_one_that_keeps_nothing():
    saved = saved_after_an_epoch(DropsInSaving, "local_sgd")

    def go_on(group: Group) -> int:
        trainer = DropsInLoading(FakeTrial({}, group, parallel={"strategy": "downpour"}))
        trainer.load_state_dict(copy.deepcopy(saved))
        return trainer.epoch

    assert run_ranks(2, go_on) == [1, 1]


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
