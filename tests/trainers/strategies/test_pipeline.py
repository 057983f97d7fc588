"""A model in stages: the losses of one process, whatever it is made of, and states that go on in any other way."""

from __future__ import annotations

import copy
import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.strategies.pipeline import SCHEDULES
from tests.comm.process_ranks import ProcessRanks
from tests.comm.thread_ranks import run_ranks
from tests.trainers.strategies import split_trainings
from tests.trainers.strategies.split_trainings import OPTIMIZERS, assert_alike, assert_tensors_alike, deep, tied
from tests.trainers.test_trainer import CLASSES, FEATURES, MODELS, FakeTrial, Small, mlp


def train(params: Mapping[str, Any], width: int = 1, epochs: int = 3, state: Any = None, **parallel: Any) -> Any:
    """Train in a pipeline, or on one rank."""
    return split_trainings.train(params, width, epochs, state, "pipeline", **parallel)


def pipeline_trial(params: Mapping[str, Any], group: Group | None) -> FakeTrial:
    return split_trainings.trial(params, group, "pipeline")


class Branch(nn.Module):
    """Uses one of its layers only, and gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(FEATURES, 8)
        self.unused = nn.Linear(FEATURES, 8)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.used(inputs), inputs, (inputs > 0).sum(1)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8 + FEATURES, CLASSES)

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> Any:
        one, two, number = inputs
        return self.layer(torch.cat([one.relu(), two], 1)) * number.unsqueeze(1)


def branching() -> nn.Module:
    return nn.Sequential(Branch(), Joined())


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in {"deep": deep, "branching": branching, "residual": Residual, "tied": tied}.items():
        monkeypatch.setitem(MODELS, name, model)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"model": "deep"},
    "branching": {"model": "branching", "lr": 0.01},
    "clipped and averaged": {"clip_norm": 0.5, "average": 0.9},
    "accumulated": {"accumulate": 2, "batch_size": 24},
    "normalized, its statistics held": {"model": "cnn", "freeze_batch_norm": 0},
    "scheduled": {"schedule": lambda epoch: 1 / (1 + epoch), "optimizer": lambda model: LARS(model.parameters())},
}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("width", "schedule"), [(2, "gpipe"), pytest.param(3, "1f1b", marks=pytest.mark.exhaustive)])
def test_the_losses_of_one_process(case, width, schedule):
    width = 2 if case == "branching" else width  # it has two layers
    found = train(CASES[case], width, schedule=schedule)
    assert_alike(found, train(CASES[case]))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_of_any_kind_steps_in_its_stage(optimizer):
    params = {"optimizer": OPTIMIZERS[optimizer], "clip_norm": 1.0}
    assert_alike(train(params, 2), train(params))


@pytest.mark.parametrize("count", [1, 3, pytest.param(64, marks=pytest.mark.exhaustive)])
def test_any_number_of_micro_batches(count):
    """Of 203 rows in batches of 20 the last one has three, fewer than micro-batches."""
    assert_alike(train({}, 2, micro_batches=count), train({}))


@pytest.mark.exhaustive
def test_both_orders_give_the_same_bits():
    of_schedule = [train({"model": "deep"}, 2, schedule=schedule, micro_batches=5) for schedule in SCHEDULES]
    assert of_schedule[0][0] == of_schedule[1][0]
    assert_tensors_alike(of_schedule[0][1], of_schedule[1][1], 0.0)


@pytest.mark.exhaustive
def test_one_micro_batch_is_normalized_as_in_one_process():
    params = {"model": "cnn", "average": 0.5}
    assert_alike(train(params, 2, micro_batches=1), train(params))
    several, alone = train(params, 2, micro_batches=4), train(params)
    assert several[0][-1]["loss"] != pytest.approx(alone[0][-1]["loss"], rel=1e-4)
    steps = alone[1]["model"]["2.num_batches_tracked"]
    assert several[1]["model"]["2.num_batches_tracked"] > 3 * steps  # statistics move once for each micro-batch


def test_half_precision():
    params = {"precision": "bf16"}
    assert_alike(train(params, 2), train(params), 0.02)


@pytest.mark.exhaustive
@pytest.mark.parametrize("average", [None, 0.9])
def test_a_state_goes_on_at_any_width_and_here_to_the_bit(average):
    params = {"model": "deep", "average": average, "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0}
    whole, end = train(params, 2, 4)
    begun, state = train(params, 2, 2)
    again, last = train(params, 2, 2, state)
    assert begun + again == whole
    assert_tensors_alike(last, end, 0.0)
    alone = train(params, 1, 4)
    assert_alike(train(params, 1, 2, state), (alone[0][2:], alone[1]))
    assert_alike(train(params, 3, 2, state), (alone[0][2:], alone[1]))
    _, of_one = train(params, 1, 2)
    assert_alike(train(params, 2, 2, of_one), (alone[0][2:], alone[1]))


def test_a_rank_holds_its_stage_alone_while_it_trains():
    def work(group: Group) -> tuple[list[int], dict[str, float]]:
        trainer: Any = Small(pipeline_trial({"optimizer": OPTIMIZERS["adamw"], "average": 0.9}, group))
        held: list[int] = []

        def look(*_: Any) -> None:
            held[:] = [
                parameter.numel() for model in (trainer.model, trainer._average) for parameter in model.parameters()
            ]

        trainer.model[2 * group.rank].register_forward_hook(look)
        metrics = trainer.step()
        assert all(parameter.numel() > 0 for parameter in trainer.model.parameters())
        return held, metrics

    (first, metrics), (last, _) = run_ranks(2, work)
    assert [size > 0 for size in first] == [True, True, False, False] * 2
    assert [size > 0 for size in last] == [False, False, True, True] * 2
    whole = sum(parameter.nbytes for parameter in list(mlp().parameters())[:2])
    assert metrics["bytes_per_rank"] == 5 * whole + 2 * 4  # weight, average, gradient and two moments; the steps


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 16)
        self.block = nn.Sequential(nn.Dropout(0.0), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.stem(inputs)
        return self.head(hidden + self.block(hidden))


class Added(nn.Module):
    """A part of a model that isn't one of its modules."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.training_seen: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.training_seen.append(self.training)
        output: Tensor = inputs + self.block(inputs)
        return output


class Named(Small):
    """Its model names its parts; `parts` gives them."""

    def build(self, params: Any) -> Any:
        made = super().build({"model": "residual", "metrics": {}})
        return dataclasses.replace(made, pipeline=params["parts"](made.model))


def named_curve(parts: Callable[[Any], list[nn.Module]], width: int = 2) -> list[dict[str, float]]:
    def work(group: Group | None) -> list[dict[str, float]]:
        trainer = Named(pipeline_trial({"parts": parts}, group))
        metrics = [trainer.step() for _ in range(2)]
        for module in trainer.parts.pipeline or ():
            if isinstance(module, Added):
                # The first is a look at what it computes; the last stage is where it is.
                assert module.training_seen[:1] == [False] * (width > 1)
                assert all(module.training_seen[1:])
        return metrics

    return work(None) if width == 1 else run_ranks(width, work)[0]


def test_a_model_that_names_its_parts():
    def parts(model: Any) -> list[nn.Module]:
        return [model.stem, Added(model.block), model.head]

    for found, expected in zip(named_curve(parts), named_curve(parts, 1), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert found["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-4)


@pytest.mark.parametrize(
    "parts",
    [
        lambda model: [model.stem, model.block, model.head],
        lambda model: [model.stem, Added(model.block), nn.ReLU(), model.head],
        lambda model: [model.stem, Added(model.block), model.head, nn.Unflatten(1, (CLASSES, 1))],
    ],
)
def test_parts_that_compute_something_else_are_refused(parts):
    with pytest.raises(ConfigurationError, match=r"what Parts.pipeline names must compute what the model does, got an"):
        named_curve(parts)


@pytest.mark.parametrize("value", [[3], nn.Sequential(nn.ReLU()), "stem"])
def test_parts_that_are_no_modules_are_refused(value):
    with pytest.raises(ConfigurationError, match="pipeline must be a list of modules, as they are called, got "):
        Small(FakeTrial({"pipeline": value}))


@pytest.mark.parametrize(
    ("params", "parallel", "message"),
    [
        ({"model": "transformer"}, {}, "takes an nn.Sequential without hooks, .* got Transformer"),
        ({"model": "cnn", "batch_norm": "sync"}, {}, "pipeline can't be used with batch_norm: layers see one"),
        (
            {"model": "tied"},
            {},
            "pipeline can't be used with shared parameters: copies .*; here 0.weight in stages 0 and 1",
        ),
        ({}, {"schedule": "fifo"}, "parallel.schedule must be one of gpipe, 1f1b, got 'fifo'"),
        ({}, {"micro_batches": 0}, "parallel.micro_batches must be a whole number of at least 1, got 0"),
    ],
)
def test_what_can_not_be_a_pipeline_is_refused(params, parallel, message):
    with pytest.raises(ConfigurationError, match=message):
        train(params, 2, **parallel)


class Follows(nn.Module):
    """Puts new buffers in the place of its own in each pass."""

    mean: Tensor
    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(CLASSES))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean, self.passes = 0.9 * self.mean + 0.1 * inputs.detach().mean(0), self.passes + 1
        return inputs + self.mean


def test_buffers_that_a_stage_makes_anew_are_those_of_one_process(monkeypatch):
    monkeypatch.setitem(MODELS, "follows", lambda: nn.Sequential(mlp(), Follows()))
    assert_alike(train({"model": "follows"}, 2, micro_batches=1), train({"model": "follows"}))


def test_a_model_put_in_place_of_another_is_cut_anew():
    def work(group: Group | None) -> list[dict[str, float]]:
        trainer = Small(pipeline_trial({}, group))
        metrics = [trainer.step()]
        trainer.model = copy.deepcopy(trainer.model)
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
        return [*metrics, trainer.step()]

    found, expected = run_ranks(2, work)[0], work(None)
    assert [epoch["loss"] for epoch in found] == pytest.approx([epoch["loss"] for epoch in expected], rel=1e-4)


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.pipelines") as server:
        yield server


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("victim", "where"), [(0, "forward"), (2, "backward"), (1, "validation")])
def test_a_stage_that_is_killed_ends_all(ranks, schedule, victim, where):
    outcomes = ranks.call(3, "killed", schedule, victim, where, timeout=60.0)
    assert outcomes[victim].code == -signal.SIGKILL
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    assert [outcome.error for outcome in others] == ["PeerLost"] * 2


def test_an_error_in_the_loss_ends_all(ranks):
    first, last = ranks.call(2, "fails", timeout=60.0)
    assert (last.error, last.text) == ("ValueError", "this loss has had enough")
    assert first.error == "PeerLost"
    assert "this loss has had enough" in first.text


def test_stages_draw_random_numbers_of_their_own(ranks):
    """Else dropout would leave out the same features in each."""
    first, last = (outcome.result for outcome in ranks.call(2, "draws"))
    assert first != last
    assert ranks.call(2, "draws")[0].result == first


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_micro_batches_of_equal_size_train_to_the_bits_of_torchs_pipelining(ranks, schedule, tmp_path):
    (losses, _, first), (_, of_torch, last) = (
        outcome.result for outcome in ranks.call(2, "as_torch_does", schedule, str(tmp_path / "store"))
    )
    assert losses == pytest.approx(of_torch, rel=1e-6)
    assert first
    assert last
