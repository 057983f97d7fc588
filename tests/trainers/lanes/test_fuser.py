"""Whoever is trained with whom from epoch to epoch, each trainer has what it would have alone."""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.digits import CNN, MLP
from hpsearch_trainers.lanes import Fuser, NotFusible, Pack, Stepped, check_pack, probe
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.fuser import ProbeResult
from tests.trainers.lanes.networks import Drawn, assert_same, made

LANES = [{"lr": lr, "dropout": dropout, "layers": ["relu"]} for lr in (0.01, 0.3) for dropout in (0.0, 0.5)]


def reported(stepped: Sequence[Stepped]) -> list[dict[str, float]]:
    for one in stepped:
        if one.error is not None:
            raise one.error
    return [one.metrics for one in stepped if one.metrics is not None]


def assert_alone(trainers: list[Trainer], stepped: Sequence[Stepped], reason: str) -> None:
    assert [one.lanes for one in stepped] == [1] * len(trainers)
    for one in stepped:
        assert one.alone_because is not None
        assert reason in one.alone_because


@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=6), st.integers(1, 4), st.sampled_from([None, 1, 2]))
@example(epochs=[{0}], most=1, fewest=1)
@settings(max_examples=25)
def test_lanes_come_and_go_between_epochs(epochs, most, fewest):
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fuser = Fuser(most, fewest)
    for present in epochs:
        stepped = fuser.step([ours[number] for number in present])
        expected = [theirs[number].step() for number in present]
        assert_same(reported(stepped), expected, ours, theirs)
        if fewest is not None:  # else what is quicker decides
            assert [one.alone_because for one in stepped] == [None] * len(present)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("trainer", [MLP, CNN])
def test_the_digits_are_trained_together(trainer):
    lanes = [
        {
            "lr": 0.05 * (1 + number),
            "dropout": 0.2 * (number % 2),
            "momentum": 0.4 * number,
            "seed": 3 if number else None,
        }
        for number in range(3)
    ]
    ours, theirs = made(trainer, lanes), made(trainer, lanes)
    stepped = Fuser(fewest=2).step(ours)
    assert [one.lanes for one in stepped] == [3, 3, 3]
    assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)


def test_trainers_of_other_shapes_are_other_packs():
    lanes = [*LANES, *({**lane, "hidden": 20} for lane in LANES[:3]), {**LANES[0], "hidden": 21}]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    stepped = Fuser(fewest=2).step(ours)
    assert [one.lanes for one in stepped] == [4, 4, 4, 4, 3, 3, 3, 1]
    assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)


def test_a_lane_that_is_no_number_hurts_nobody():
    lanes = [{**LANES[0], "lr": 1e30}, *LANES]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        assert_same(reported(fuser.step(ours)), [one.step() for one in theirs], ours, theirs)
    metrics = fuser.step(ours)[0].metrics
    assert metrics is not None
    assert metrics["loss"] != metrics["loss"]


class Raising(Drawn):
    """Its loss raises in the epoch of its parameter `raises`, at the second batch."""

    def build(self, params):
        parts = super().build({"batch_size": 16, **params})  # type: ignore[no-untyped-call]
        self.batches = 0

        def loss(output: Tensor, target: Tensor) -> Tensor:
            self.batches += self.model.training and self.epoch == params.get("raises")
            if self.batches >= 2:
                raise ArithmeticError(f"epoch {self.epoch}")
            return functional.cross_entropy(output, target)

        parts_with_it = {
            name: getattr(parts, name) for name in ("model", "optimizer", "train", "batch_size", "schedule", "average")
        }
        return Parts(**parts_with_it, loss=loss)


def test_one_that_raises_fails_alone():
    lanes = [*LANES[:2], {**LANES[2], "raises": 1}]
    ours, theirs = made(Raising, lanes), made(Raising, lanes)
    fuser = Fuser(fewest=2)
    assert [one.lanes for one in fuser.step(ours)] == [3, 3, 3]
    stepped = fuser.step(ours)
    assert isinstance(stepped[2].error, ArithmeticError)
    expected = [[one.step() for _ in range(2)][1] for one in theirs[:2]]
    assert_same(reported(stepped[:2]), expected, ours[:2], theirs[:2])
    assert [one.lanes for one in fuser.step(ours[:2])] == [2, 2], "the others are lanes again"


def test_a_released_trainer_has_memory_of_its_own():
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fuser = Fuser(fewest=2)
    fuser.step(ours)
    fuser.release(ours[1])
    for tensor in ours[1].model.state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    for one in theirs:
        one.step()
    assert_same([ours[1].step()], [theirs[1].step()], ours[1:2], theirs[1:2])
    rest = [0, 2, 3]
    stepped = fuser.step([ours[number] for number in rest])
    assert_same(reported(stepped), [theirs[number].step() for number in rest], ours, theirs)


class Hooked(Drawn):
    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        parts.model.register_forward_hook(lambda *_: None)
        return parts


class BrokenLoss(Drawn):
    def build(self, params):
        loss = nn.CrossEntropyLoss()
        del loss.label_smoothing
        return dataclasses.replace(super().build(params), loss=loss)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", [Hooked, BrokenLoss])
def test_where_no_pack_can_be_made_each_has_memory_of_its_own(kind):
    ours = made(kind, LANES)
    before = [copy.deepcopy(one.model.state_dict()) for one in ours]
    with pytest.raises((NotFusible, AttributeError)):
        Pack(ours)
    for one, held in zip(ours, before, strict=True):
        assert same_bits(one.model.state_dict(), held)
        for tensor in one.model.state_dict().values():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_nothing_is_kept_of_trainers_that_are_given_no_more():
    ours = made(Drawn, LANES)
    fuser = Fuser(fewest=2)
    fuser.step(ours)
    held = [weakref.ref(trainer) for trainer in ours]
    fuser.step([])
    del ours
    gc.collect()
    assert [one() for one in held] == [None] * len(LANES)


def test_the_process_draws_what_it_would_have_drawn():
    ours = made(Drawn, LANES)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Fuser(fewest=2).step(ours)
    assert torch.equal(torch.rand(3), expected)


class WithModel(Trainer):
    """Trains what its parameter `model` makes, on rows of four features."""

    def build(self, params):
        model = params["model"](params)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(20, 4, generator=generator), torch.randn(20, 3, generator=generator)
        loss = params.get("loss", lambda _: functional.mse_loss)(model)
        return Parts(model, optimizer, loss, data, data, batch_size=8)


class Scaled(nn.Module):
    """A linear layer, and what a test makes of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.linear(x)


class Sampling(Scaled):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x + torch.randn_like(x))


class Reading(Scaled):
    def forward(self, x: Tensor) -> Any:
        output = super().forward(x)
        return output * 2 if output.sum().item() > 0 else output


class Counting(Scaled):
    calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return super().forward(x)


class Remembering(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.last


class Looking(Scaled):
    """A module that returns another result for plain tensors than for subclasses."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (2 if type(x) is Tensor else 3)


class Global(Scaled):
    """Has a factor that lies elsewhere."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * factors[id(self.linear.weight)]


factors: dict[int, float] = {}


def penalized(model: nn.Module) -> Any:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        weights = next(model.parameters())
        return functional.mse_loss(output, target) + 0.1 * weights.pow(2).sum()

    return loss


def hooked(_: Any) -> nn.Module:
    model = Scaled()
    model.linear.register_forward_hook(lambda module, given, output: output * 2)
    return model


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.cells(x.unsqueeze(-1))[0][:, -1]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"model": lambda _: Sampling()}, "draws from the process's random generators"),
        ({"model": lambda _: Reading()}, "reads values by item"),
        ({"model": lambda _: Counting()}, "changes attributes of its own"),
        ({"model": lambda _: Remembering()}, "model.last is a Tensor, which can't be compared"),
        ({"model": lambda _: Recurrent()}, "model.cells"),
        ({"model": hooked}, "model.linear has hooks"),
        ({"model": lambda _: Looking()}, "lanes have another"),
        ({"model": lambda _: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))}, "is parametrized"),
        ({"model": lambda _: Scaled(), "loss": penalized}, "its loss comes to its model's parameters"),
    ],
    ids=["noise", "branch", "count", "tensor", "lstm", "hooks", "type", "spectral norm", "penalty"],
)
def test_what_would_not_be_the_same_runs_alone_and_says_why(params, reason):
    ours, theirs = made(WithModel, [params] * 3), made(WithModel, [params] * 3)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        stepped = fuser.step(ours)
        assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)
        assert_alone(ours, stepped, reason)


def test_a_model_that_reads_a_global_variable_runs_alone():
    def scaled(params: Any) -> nn.Module:
        model = Global()
        factors[id(model.linear.weight)] = params["factor"]
        return model

    lanes = [{"model": scaled, "factor": factor} for factor in (1.0, 1.0, 2.0)]
    ours, theirs = made(WithModel, lanes), made(WithModel, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(2):
        assert_same(reported(fuser.step(ours)), [one.step() for one in theirs], ours, theirs)
    factors.clear()


class OwnLoop(Drawn):
    def validate(self):
        return super().validate() | {"more": 1.0}


class OwnRows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        return torch.full((4,), float(row)), torch.zeros(3)


class RowByRow(WithModel):
    def build(self, params):
        model = nn.Linear(4, 3)
        return Parts(model, torch.optim.SGD(model.parameters(), lr=0.01), functional.mse_loss, OwnRows())


def test_trainers_with_a_loop_of_their_own_or_data_by_rows_run_alone():
    ours = made(OwnLoop, LANES)
    assert_alone(ours, Fuser(fewest=2).step(ours), "OwnLoop has a validate of its own")
    rows = made(RowByRow, [{}, {}])
    assert_alone(rows, Fuser(fewest=2).step(rows), "its data are read row by row")


def test_with_more_threads_they_run_alone():
    torch.set_num_threads(2)
    ours = made(Drawn, LANES)
    assert_alone(ours, Fuser(fewest=2).step(ours), "torch has 2 threads here")


def test_what_others_change_between_epochs_counts():
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fusers = Fuser(fewest=2), Fuser(fewest=2)
    for epoch in range(6):
        for trainers in (ours, theirs):
            for number, trainer in enumerate(trainers):
                first, dropout = trainer.parts.model[0], trainer.parts.model[2]  # type: ignore[index]
                if epoch == 1:
                    dropout.p = 0.1 * number
                if epoch == 2:
                    first.weight.requires_grad_(False)
                if epoch == 3:
                    first.weight.data = first.weight.data * 0.5
                if epoch == 4:
                    trainer.load_state_dict(copy.deepcopy(trainers[3 - number].state_dict()))
        stepped = fusers[epoch % 2].step(ours)
        assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)
        # From a layer that is frozen on they are no longer what their `build` gives, so that it can't be tried.
        assert [one.lanes for one in stepped] == [4 if epoch < 2 else 1] * 4
        assert {one.alone_because for one in stepped} == {None if epoch < 2 else OTHERS}


OTHERS = "its model, optimizer, loss or data are by now others than its build gives"


def test_what_others_put_in_place_of_something_else_is_trained():
    lanes = [{**lane, "warmup": 3, "average": 0.5} for lane in LANES]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = Fuser(fewest=2)
    for epoch in range(7):
        for trainers in (ours, theirs):
            for number, trainer in enumerate(trainers):
                if epoch in (1, 5):
                    trainer.optimizer.param_groups[0]["lr"] = 0.02 * (1 + number)
                if epoch == 2:
                    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.5)
                if epoch == 4:
                    torch.manual_seed(number)
                    trainer.model[0] = nn.Linear(7, 13)  # type: ignore[operator]
                    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05)
        stepped = fuser.step(ours)
        assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)
        # From another optimizer on they are no longer what their `build` gives, so that it can't be tried.
        assert [one.lanes for one in stepped] == [4 if epoch < 2 else 1] * 4


def test_what_cannot_be_trained_any_more_fails_as_it_does_alone():
    ours = made(Drawn, LANES)
    fuser = Fuser(fewest=2)
    fuser.step(ours)
    ours[1].model[0] = nn.Linear(7, 13)  # type: ignore[operator]
    stepped = fuser.step(ours)
    assert "give the optimizer the parameters of the new ones" in str(stepped[1].error)
    assert [one.error for one in (stepped[0], *stepped[2:])] == [None] * 3


def test_a_failed_epoch_leaves_each_as_it_was():
    lanes = [
        {**lane, "optimizer": name} for lane, name in zip(LANES, ["fused sgd", "adam", "sgd", "lamb"], strict=True)
    ]
    lanes[2]["raises"] = 1
    ours, theirs = made(Raising, lanes), made(Raising, lanes)
    pack = Pack(ours)
    pack.step()
    for one in theirs:
        one.step()
    torch.manual_seed(5)
    with pytest.raises(ArithmeticError, match="epoch 1"):
        pack.step()
    assert [one.epoch for one in ours] == [1, 1, 1, 1]
    assert all(same_bits(one.state_dict(), other.state_dict()) for one, other in zip(ours, theirs, strict=True))
    drawn = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(2))


def test_a_rate_in_a_tensor_is_what_it_was_after_a_failed_epoch():
    trainers = made(Raising, [{**LANES[0], "optimizer": "rate in a tensor", "warmup": 3.0, "raises": 1}] * 2)
    pack = Pack(trainers)
    pack.step()
    rates = [float(one.optimizer.param_groups[0]["lr"]) for one in trainers]
    with pytest.raises(ArithmeticError, match="epoch 1"):
        pack.step()
    assert [float(one.optimizer.param_groups[0]["lr"]) for one in trainers] == rates


def test_an_average_counts_no_failed_epoch():
    trainers = made(Raising, [{**LANES[0], "average": 0.9, "raises": 1}] * 2)
    pack = Pack(trainers)
    pack.step()
    before = [copy.deepcopy(one.state_dict()) for one in trainers]
    with pytest.raises(ArithmeticError, match="epoch 1"):
        pack.step()
    assert same_bits([one.state_dict() for one in trainers], before)


def test_a_number_of_lanes_below_one_is_refused():
    with pytest.raises(ValueError, match="most must be a number of lanes from 1, got 0"):
        Fuser(0)
    with pytest.raises(ValueError, match="fewest must be a number of lanes from 1, got 0"):
        Fuser(fewest=0)


def test_whether_it_is_quicker_is_no_part_of_a_result():
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fuser = Fuser(4)
    for _ in range(2):
        assert_same(reported(fuser.step(ours)), [one.step() for one in theirs], ours, theirs)


def test_a_single_one_goes_on_in_the_quicker_way_and_with_the_bits_of_both(monkeypatch):
    """One that is left of several is tried as a lane and by its own step."""
    monkeypatch.setattr("hpsearch_trainers.lanes.fuser.probe_result", lambda *_: ProbeResult({2: 0.5, 4: 0.3}, {}))
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fuser = Fuser(4)
    ways = []
    for epoch in range(12):
        present = range(4) if epoch == 0 else [2]
        stepped = fuser.step([ours[number] for number in present])
        assert_same(reported(stepped), [theirs[number].step() for number in present], ours, theirs)
        assert {one.alone_because for one in stepped} == {None}
        ways.append(ours[2] in fuser._packs)
    assert ways[:4] == [True, True, True, False]
    assert len(set(ways[4:])) == 1


def test_one_pause_while_lanes_are_timed_says_nothing_of_them(monkeypatch):
    """Python's garbage collector took a tenth of a second once in a hundred tries, as a dozen of these epochs does."""
    # Two alone, both once more, one as a lane, then both, and both once more.
    seconds = iter([1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 1.0])
    monkeypatch.setattr(probe, "_timed", lambda run: (run(), next(seconds)))
    assert check_pack(made(Drawn, LANES[:1])[0], 2) == {2: 0.5}
