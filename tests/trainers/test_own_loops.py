"""A Trainer whose step has a loop of its own, such as one with several optimizers; and compiled models."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers import Parts, Trainer
from tests.comm.thread_ranks import run_ranks

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True)


@dataclass(frozen=True)
class Trial:
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 5
    group: Any = None
    parent: int | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)


class Plain(Trainer):
    def build(self, params: Any) -> Parts:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
        options = {name: params[name] for name in ("average", "compile", "precision", "schedule") if name in params}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        data = (INPUTS, TARGETS)
        return Parts(model, optimizer, nn.functional.mse_loss, data, data, batch_size=16, **options)


class Hidden(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(inputs)))  # type: ignore[no-any-return]


class OwnLoop(Plain):
    """Does by itself what Trainer does."""

    def step(self) -> dict[str, float]:
        total = 0.0
        for inputs, targets in self.train_batches():
            self.optimizer.zero_grad()
            loss = self.parts.loss(self.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += loss.item() * len(inputs)
        return {"loss": total / len(INPUTS), **self.validate()}


def without_rest(curve: list[dict[str, float]]) -> list[list[float]]:
    return [[row["loss"], row["validation_loss"]] for row in curve]


@pytest.mark.parametrize("params", [{}, {"schedule": lambda epoch: 1.0 / (1.0 + epoch)}], ids=["steady", "schedule"])
def test_a_loop_of_its_own_trains_as_trainers_does(params):
    own, trainers = OwnLoop(Trial(params)), Plain(Trial(params))
    found, expected = [[trainer.step() for _ in range(3)] for trainer in (own, trainers)]
    for one, other in zip(without_rest(found), without_rest(expected), strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert own.epoch == 3
    assert own.optimizer.param_groups[0]["lr"] == 0.05


def test_a_loop_of_its_own_goes_on_from_a_checkpoint_as_if_uninterrupted():
    whole = OwnLoop(Trial())
    expected = [whole.step() for _ in range(3)]
    begun = OwnLoop(Trial())
    begun.step()
    resumed = OwnLoop(Trial())
    resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
    assert without_rest([resumed.step(), resumed.step()]) == without_rest(expected[1:])


def test_a_loop_that_breaks_off_leaves_the_rate_as_it_was_and_has_had_its_epoch():
    trainer = OwnLoop(Trial({"schedule": lambda epoch: 0.1}))
    batches = trainer.train_batches()
    next(batches)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    batches.close()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05
    assert trainer.epoch == 1
    first, second = (next(trainer.train_batches())[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("last", [None, 0], ids=["whole", "broken off"])
def test_the_moving_average_follows_a_loop_of_its_own(last):
    trainer = OwnLoop(Trial({"average": 0.5}))
    expected: dict[str, torch.Tensor] = {}
    for number, (inputs, targets) in enumerate(trainer.train_batches()):
        trainer.optimizer.zero_grad()
        trainer.parts.loss(trainer.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()
        for name, value in trainer.model.state_dict().items():
            expected[name] = value.clone() if number == 0 else expected[name].lerp(value, 0.5)
        if number == last:
            break
    assert trainer._average is not None
    for name, value in trainer._average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_a_validation_within_a_loop_leaves_the_modes_of_layers_as_they_are():
    trainer = OwnLoop(Trial())
    for _ in trainer.train_batches():
        trainer.model[0].eval()  # type: ignore[index]
        trainer.validate()
        assert [module.training for module in trainer.model.children()] == [False, True, True, True]


def test_several_workers_take_no_loop_that_says_nothing_of_them():
    def work(group: Any) -> None:
        with pytest.raises(ConfigurationError, match="takes one worker, got several: call super"):
            OwnLoop(Trial(group=group)).step()

    run_ranks(2, work)


class Adversarial(Trainer):
    """Two models that train against each other, with an optimizer each."""

    def build(self, params: Any) -> Parts:
        torch.manual_seed(3)
        model = nn.ModuleDict({"generator": nn.Linear(3, 3), "critic": nn.Linear(3, 1)})
        kind = torch.optim.AdamW if params.get("other") else torch.optim.Adam
        self.critic_optimizer = kind(model["critic"].parameters(), lr=params.get("critic lr", 0.01))
        self.critic_scheduler = StepLR(self.critic_optimizer, 1, 0.5)
        optimizer = torch.optim.Adam(model["generator"].parameters(), lr=0.01)
        return Parts(model, optimizer, nn.functional.mse_loss, (INPUTS, TARGETS), batch_size=16)

    def step(self) -> dict[str, float]:
        generator, critic = self.model["generator"], self.model["critic"]  # type: ignore[index]
        for real, _ in self.train_batches():
            made = generator(torch.randn_like(real))
            critic_loss = critic(made.detach()).mean() - critic(real).mean()
            self.critic_optimizer.zero_grad()
            critic_loss.backward()
            self.critic_optimizer.step()
            self.optimizer.zero_grad()
            loss = -critic(made).mean()
            loss.backward()
            self.optimizer.step()
        self.critic_scheduler.step()
        return {"loss": loss.item(), "critic_loss": critic_loss.item()}


def test_several_optimizers_and_their_schedulers_are_saved_and_go_on():
    whole = Adversarial(Trial())
    expected = [whole.step() for _ in range(4)]
    begun = Adversarial(Trial())
    assert [begun.step(), begun.step()] == expected[:2]
    resumed = Adversarial(Trial())
    resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
    assert resumed.critic_optimizer.param_groups[0]["lr"] == 0.0025
    assert [resumed.step(), resumed.step()] == expected[2:]


def test_a_fork_keeps_the_settings_of_each_optimizer():
    parent = Adversarial(Trial())
    parent.step()
    fork = Adversarial(Trial({"critic lr": 0.2}, parent=0))
    fork.load_state_dict(copy.deepcopy(parent.state_dict()))
    assert fork.critic_optimizer.param_groups[0]["lr"] == 0.1  # halved as often as the parent's
    weight = fork.model["critic"].weight  # type: ignore[index]
    assert fork.critic_optimizer.state[weight]["exp_avg"].abs().sum() > 0


class Contained(OwnLoop):
    """Has what it trains with in containers, and a scaler and an average of its own."""

    def build(self, params: Any) -> Parts:
        parts = super().build(params)
        assert isinstance(parts.optimizer, torch.optim.Optimizer)
        last = torch.optim.Adam(parts.model[3].parameters(), lr=0.01)  # type: ignore[index]
        self.optimizers = [parts.optimizer, last]
        self.schedulers = {"last": StepLR(last, 1, 0.5)}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.averaged = AveragedModel(parts.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))  # type: ignore[no-untyped-call]
        return parts

    def step(self) -> dict[str, float]:
        for inputs, targets in self.train_batches():
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.parts.loss(self.model(inputs), targets)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(optimizer)
            self.scaler.update()
            self.averaged.update_parameters(self.model)
        self.schedulers["last"].step()
        self.averaged.eval()
        averaged = self.parts.loss(self.averaged(INPUTS), TARGETS).item()
        return {"loss": loss.item(), "averaged": averaged, "scale": self.scaler.get_scale()}


def test_optimizers_in_containers_scalers_and_averages_go_on_as_if_uninterrupted():
    whole = Contained(Trial())
    expected = [whole.step() for _ in range(4)]
    begun = Contained(Trial())
    assert [begun.step(), begun.step()] == expected[:2]
    state = copy.deepcopy(begun.state_dict())
    assert state["optimizers"].keys() == {"optimizers.1"}
    assert state["schedulers"].keys() == {"schedulers.last"}
    resumed = Contained(Trial())
    resumed.load_state_dict(state)
    assert [resumed.step(), resumed.step()] == expected[2:]
    assert expected[0]["scale"] != expected[3]["scale"]


def test_an_optimizer_of_weights_that_nobody_saves_is_refused():
    class Outside(OwnLoop):
        def build(self, params: Any) -> Parts:
            self.critic = nn.Linear(3, 1)
            self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
            return super().build(params)

    with pytest.raises(ConfigurationError, match="critic_optimizer must have parameters of the model alone, got 2"):
        Outside(Trial()).state_dict()

    class Saving(Outside):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "critic": self.critic.state_dict()}

    assert "critic_optimizer" in Saving(Trial()).state_dict()["optimizers"]


@pytest.mark.parametrize("name", ["the optimizer", "last"])
def test_a_scheduler_of_any_optimizer_that_nobody_saves_is_refused(name):
    class Scheduled(OwnLoop):
        def build(self, params: Any) -> Parts:
            parts = super().build(params)
            assert isinstance(parts.optimizer, torch.optim.Optimizer)
            self.last = torch.optim.Adam(parts.model[3].parameters())  # type: ignore[index]
            schedulers = [StepLR(one, 1) for one in (parts.optimizer, self.last)]
            self.scheduler = schedulers[name == "the optimizer"]
            return parts

    with pytest.raises(ConfigurationError, match=f"a scheduler of {name} must be an attribute"):
        Scheduled(Trial()).state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trainer: delattr(trainer, "critic_optimizer"), "saved with, critic_optimizer, got none"),
        (lambda trainer: setattr(trainer, "more", copy.copy(trainer.optimizer)), "got critic_optimizer, more"),
    ],
)
def test_a_state_of_other_optimizers_is_refused(change, message):
    state = Adversarial(Trial()).state_dict()
    trainer = Adversarial(Trial())
    change(trainer)
    with pytest.raises(ConfigurationError, match=message):
        trainer.load_state_dict(state)


def test_a_state_of_an_optimizer_of_another_class_is_refused():
    state = Adversarial(Trial()).state_dict()
    with pytest.raises(ConfigurationError, match="the class that its state was saved with, Adam, got AdamW"):
        Adversarial(Trial({"other": True})).load_state_dict(state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_compiled_model_trains_as_one_that_is_not_and_shares_its_checkpoints(backend):
    plain, compiled = Plain(Trial()), Plain(Trial({"compile": backend}))
    expected, found = [[trainer.step() for _ in range(2)] for trainer in (plain, compiled)]
    assert plain.state_dict()["model"].keys() == compiled.state_dict()["model"].keys()
    if backend == "eager":
        assert without_rest(found) == without_rest(expected)
    resumed = Plain(Trial({"compile": backend}))
    resumed.load_state_dict(copy.deepcopy(plain.state_dict()))
    after = without_rest([resumed.step()])[0][1]
    assert after == pytest.approx(without_rest([plain.step()])[0][1], rel=0.2 if backend is True else 1e-6)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_trial_of_a_process_is_compiled():
    class Wide(Plain):
        def build(self, params: Any) -> Parts:
            model = Hidden(params["hidden"])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            data = (INPUTS, TARGETS)
            return Parts(model, optimizer, nn.functional.mse_loss, data, data, batch_size=20, compile="counting")

    compiled: list[int] = []

    def counting(module: Any, _: Any) -> Any:
        compiled.append(1)
        return module

    torch._dynamo.register_backend(counting, name="counting")
    numbers = []
    for hidden in range(2, 12):
        before = len(compiled)
        trainer = Wide(Trial({"hidden": hidden}))
        trainer.step()
        numbers.append(len(compiled) - before)
    assert numbers == [2] * 10  # one for training, one for validation


def test_bf16_is_autocast():
    seen: list[torch.dtype] = []
    trainer = Plain(Trial({"precision": "bf16"}))
    trainer.model.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    trainer.step()
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
