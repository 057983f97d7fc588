"""The loop of a trainer: a plain loop's results on one worker, and the same on several."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.batches import Batches
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks

ROWS, FEATURES, CLASSES = 203, 12, 5


@dataclass
class FakeTrial:
    """What a trainer asks of a trial."""

    params: Mapping[str, Any] = field(default_factory=dict)
    group: Group | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7
    parent: int | None = None
    parallel: Mapping[str, Any] = field(default_factory=dict)


def data(rows: int = ROWS, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs @ teacher).argmax(1)


def correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float()


building = threading.Lock()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


class Transformer(nn.Module):
    """Three tokens of four features each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(self.layer(inputs.view(-1, 3, 4)).flatten(1))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}


class Small(Trainer):
    """A classifier; `params` may hold any of the parts."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        chosen = dict(params)
        with building:  # ranks are threads here, which share torch's generator
            torch.manual_seed(3)
            model = MODELS[chosen.pop("model", "mlp")]()
        lr = chosen.pop("lr", 0.05)
        defaults: dict[str, Any] = {
            "optimizer": torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
            "loss": functional.cross_entropy,
            "train": data(),
            "validation": data(101, seed=2),
            "metrics": {"accuracy": correct},
            "batch_size": 20,
        }
        return Parts(model=model, **(defaults | chosen))


def curve(epochs: int = 4, width: int = 1, scaling: Mapping[str, Any] | None = None, **params: Any) -> list[Any]:
    """Train, and return each epoch's metrics; those of all ranks must be equal."""

    def train(group: Group | None) -> list[Any]:
        trainer = Small(FakeTrial(params, group, scaling or {}))
        return [trainer.step() for _ in range(epochs)]

    if width == 1:
        return train(None)
    of_rank = run_ranks(width, train)
    assert all(metrics == of_rank[0] for metrics in of_rank)
    return of_rank[0]


def of(metrics: list[Any], name: str) -> list[float]:
    return [epoch[name] for epoch in metrics]


def test_one_worker_does_as_a_plain_loop():
    inputs, targets = data()
    torch.manual_seed(3)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shard, losses = Shard(ROWS, 20, 7), []
    for epoch in range(4):
        total = 0.0
        for rows in shard.epoch(epoch):
            loss = functional.cross_entropy(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / ROWS)
    found = curve()
    assert of(found, "loss") == pytest.approx(losses, rel=1e-6)
    more, wanted = data(101, seed=2)
    output = model(more)
    assert found[-1]["accuracy"] == pytest.approx(float(correct(output, wanted).mean()))
    assert found[-1]["validation_loss"] == pytest.approx(float(functional.cross_entropy(output, wanted).detach()))
    assert found[-1]["learning_rate"] == pytest.approx(0.05)
    assert found[-1]["global_batch"] == 20
    assert 0 <= found[-1]["data_wait"] <= 1
    assert found[-1]["accuracy"] > 0.5


EACH_ONCE = {("mlp", 4), ("cnn", 3), ("transformer", 2)}
"""Of models and widths: each occurs in one."""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("model", "width"),
    [
        pytest.param(model, width, marks=() if (model, width) in EACH_ONCE else pytest.mark.exhaustive)
        for width in (2, 3, 4)
        for model in MODELS
    ],
)
def test_a_global_batch_trains_alike_at_any_width(model, width):
    """203 rows in batches of 20: parts are unequal, and the last batch of 3 leaves a worker of four without rows."""
    alone = curve(10, model=model, batch_norm="sync")
    wide = curve(10, width, model=model, batch_norm="sync")
    assert of(wide, "loss") == pytest.approx(of(alone, "loss"), abs=1e-4)
    assert of(wide, "validation_loss") == pytest.approx(of(alone, "validation_loss"), abs=1e-4)
    assert of(wide, "global_batch") == [20] * 10


def test_a_group_of_one_is_none():
    with Group(0, 1) as group:
        trainer = Small(FakeTrial(group=group))
        assert trainer.group is None
        assert [trainer.step() for _ in range(4)] == curve(4)


def test_a_trial_that_changes_its_width_twice_has_the_same_curve():
    alone = of(curve(6), "loss")
    state: dict[str, Any] = {}
    losses = []
    for width in (1, 4, 2):

        def train(group: Group | None) -> tuple[list[float], Any]:
            trainer = Small(FakeTrial({}, group))
            if state:
                trainer.load_state_dict(copy.deepcopy(state["saved"]))  # ranks are threads here
            found = [trainer.step()["loss"] for _ in range(2)]
            return found, trainer.state_dict()

        results = [train(None)] if width == 1 else run_ranks(width, train)
        losses += results[0][0]
        state["saved"] = results[0][1]
    assert losses == pytest.approx(alone, abs=1e-4)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    "options", [{}, {"model": "cnn"}, {"average": 0.9}, {"clip_norm": 0.5}, {"precision": "fp16"}], ids=str
)
def test_a_saved_state_continues_to_the_bit(options):
    whole = of(curve(4, **options), "validation_loss")
    first = Small(FakeTrial(options))
    begun = [first.step()["validation_loss"] for _ in range(2)]
    second = Small(FakeTrial(options))
    second.load_state_dict(first.state_dict())
    assert begun + [second.step()["validation_loss"] for _ in range(2)] == whole


def test_a_fork_goes_on_with_anothers_state_and_its_own_settings():
    def made(lr: float, momentum: float, parent: int | None = None) -> Small:
        def optimizer(model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)

        return Small(FakeTrial({"optimizer": optimizer}, parent=parent))

    former = made(0.05, 0.9)
    former.step()
    state = copy.deepcopy(former.state_dict())
    fork, same = made(0.2, 0.5, parent=0), made(0.2, 0.5)
    for trainer in (fork, same):
        trainer.load_state_dict(copy.deepcopy(state))
        for tensor, saved in zip(trainer.model.state_dict().values(), state["model"].values(), strict=True):
            assert torch.equal(tensor, saved)
        assert trainer.optimizer.state_dict()["state"].keys() == state["optimizer"]["state"].keys()
    assert fork.step()["learning_rate"] == pytest.approx(0.2)
    assert fork.optimizer.param_groups[0]["momentum"] == 0.5
    assert same.step()["learning_rate"] == pytest.approx(0.05)  # one's own state holds one's own settings
    assert fork.epoch == 2
    # and once it has a state of its own, that one continues it to the bit
    again = made(0.2, 0.5)
    again.load_state_dict(copy.deepcopy(fork.state_dict()))
    assert again.step()["loss"] == fork.step()["loss"]


def test_accumulation_changes_nothing_but_memory():
    assert of(curve(3, accumulate=3), "loss") == pytest.approx(of(curve(3), "loss"), abs=1e-5)
    assert of(curve(3, 2, accumulate=3), "loss") == pytest.approx(of(curve(3), "loss"), abs=1e-5)


def test_batches_grow_with_the_width_and_the_rate_warms_up():
    found = curve(4, 2, {"batch": "per_worker", "warmup_epochs": 2})
    assert of(found, "global_batch") == [40] * 4
    steps = Shard(ROWS, 40, 0).steps
    assert of(found, "learning_rate") == pytest.approx(
        [0.05 * (1 + (1 - 1 / steps) / 2), 0.05 * (1 + (2 - 1 / steps) / 2), 0.1, 0.1]
    )


def test_a_rate_warms_up_from_where_the_width_grew():
    scaling = {"batch": "per_worker", "warmup_epochs": 1}
    first = Small(FakeTrial(scaling=scaling))
    for _ in range(3):
        assert first.step()["learning_rate"] == pytest.approx(0.05)

    def train(group: Group) -> list[float]:
        trainer = Small(FakeTrial({}, group, scaling))
        trainer.load_state_dict(copy.deepcopy(first.state_dict()))
        return [trainer.step()["learning_rate"] for _ in range(2)]

    warm, done = run_ranks(2, train)[0]
    assert 0.05 < warm < 0.1
    assert done == pytest.approx(0.1)


def test_adam_scales_by_the_square_root():
    class WithAdam(Small):
        def build(self, params: Mapping[str, Any]) -> Parts:
            return super().build({"optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=0.01)})

    def train(group: Group) -> float:
        return WithAdam(FakeTrial({}, group, {"batch": "per_worker", "warmup_epochs": 0})).step()["learning_rate"]

    assert run_ranks(4, train) == pytest.approx([0.02] * 4)


def test_a_schedule_multiplies_the_rate():
    found = curve(2, schedule=lambda epoch: 1.0 if epoch < 1 else 0.1)
    assert of(found, "learning_rate") == pytest.approx([0.05, 0.005])


def test_a_state_is_loaded_into_a_trainer_that_is_further():
    trainer = Small(FakeTrial({"schedule": lambda epoch: 1.0 if epoch < 1 else 0.1}))
    trainer.step()
    saved = copy.deepcopy(trainer.state_dict())
    second = trainer.step()
    assert second["learning_rate"] == pytest.approx(0.005)
    trainer.load_state_dict(saved)
    assert trainer.step() == second


def test_statistics_of_local_normalization_are_averaged():
    def train(group: Group) -> dict[str, Tensor]:
        trainer = Small(FakeTrial({"model": "cnn"}, group))
        trainer.step()
        return {name: value.clone() for name, value in trainer.state_dict()["model"].items()}

    one, other = run_ranks(2, train)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_frozen_normalization_keeps_its_statistics():
    trainer = Small(FakeTrial({"model": "cnn", "freeze_batch_norm": 1}))
    statistics = []
    for _ in range(3):
        trainer.step()
        statistics.append(trainer.model[2].running_mean.clone())  # type: ignore[index]
    assert not torch.equal(statistics[0], torch.zeros(4))
    assert torch.equal(statistics[1], statistics[0])
    assert torch.equal(statistics[2], statistics[0])


def test_averaged_weights_are_what_is_validated():
    plain, averaged = curve(2), curve(2, average=0.99)
    assert of(plain, "loss") == of(averaged, "loss")
    assert of(plain, "validation_loss") != of(averaged, "validation_loss")


def test_bfloat16_trains_too():
    found = of(curve(3, precision="bf16"), "loss")
    assert found == pytest.approx(of(curve(3), "loss"), abs=0.05)
    assert found != of(curve(3), "loss")


def large_loss(output: Tensor, target: Tensor) -> Tensor:
    """A loss whose gradients overflow in float16, when it is scaled as at first."""
    return 100.0 * functional.cross_entropy(output, target)


def test_float16_does_as_a_plain_loop_with_a_scaled_loss():
    inputs, targets = data()
    torch.manual_seed(3)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9)
    scaler, losses, scales = torch.amp.GradScaler("cpu"), [], []
    for epoch in range(4):
        total = 0.0
        for rows in Shard(ROWS, 20, 7).epoch(epoch):
            with torch.autocast("cpu", torch.float16):
                loss = large_loss(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 50.0)
            scaler.step(optimizer)
            scaler.update()
            total += float(loss.detach()) * len(rows)
        losses.append(total / ROWS)
        scales.append(scaler.get_scale())
    options: dict[str, Any] = {"precision": "fp16", "loss": large_loss, "lr": 5e-4, "clip_norm": 50.0}
    assert of(curve(**options), "loss") == pytest.approx(losses, rel=1e-6)
    assert scales[-1] < 65536.0  # steps were left out
    assert losses[-1] < losses[0]
    assert of(curve(width=2, **options), "loss") == pytest.approx(losses, rel=0.05)


class Rows(Dataset[Any]):
    """A map-style data set."""

    def __init__(self, broken: int | None = None) -> None:
        self.inputs, self.targets = data()
        self.broken = broken

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == self.broken:
            raise OSError("row 5 can't be read")
        return self.inputs[row], self.targets[row]


@pytest.mark.parametrize("width", [1, 4])
def test_a_map_style_data_set_gives_what_its_tensors_would(width):
    assert of(curve(2, width, train=Rows()), "loss") == pytest.approx(of(curve(2), "loss"), abs=1e-5)


@pytest.mark.slow
def test_a_map_style_data_set_is_read_by_processes():
    assert of(curve(2, train=Rows(), loaders=2), "loss") == of(curve(2), "loss")


class Readers(Dataset[Any]):
    """A data set whose rows are the number of processes that read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> tuple[int, int]:
        worker = get_worker_info()
        assert worker is not None
        return worker.num_workers, row


@pytest.mark.parametrize("wanted", [1, 3])
def test_no_more_processes_read_than_the_worker_has_cores(wanted):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        batches = list(Batches(Readers(), torch.device("cpu"), wanted).read(torch.split(torch.arange(4), 2)))
    finally:
        torch.set_num_threads(threads)
    assert [[column.tolist() for column in batch] for batch in batches] == [[[1, 1], [0, 1]], [[1, 1], [2, 3]]]


def test_rows_of_tensors_are_gathered_in_the_order_asked_for():
    batches = Batches((torch.arange(6).view(3, 2), torch.arange(3)), torch.device("cpu"))
    wanted = [torch.tensor([2, 0]), torch.tensor([], dtype=torch.int64)]
    found = [[column.tolist() for column in batch] for batch in batches.read(wanted)]
    assert found == [[[[4, 5], [0, 1]], [2, 0]], [[], []]]
    assert batches.waited == 0


def test_what_a_data_set_raises_comes_out_of_the_step():
    before = set(threading.enumerate())  # one of a test before may be about to end
    with pytest.raises(OSError, match="row 5 can't be read"):
        curve(1, train=Rows(broken=5))
    assert set(threading.enumerate()) <= before


def test_without_validation_data_there_is_no_validation():
    assert set(curve(1, validation=None)[0]) == {"loss", "learning_rate", "global_batch", "data_wait"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"accumulate": 1.5}, "accumulate must be a whole number of at least 1, got 1.5"),
        ({"average": 1.0}, "average must be a decay below 1, got 1.0"),
        ({"batch_norm": "global"}, "batch_norm must be one of local, sync, got 'global'"),
        ({"precision": "fp64"}, "precision must be bf16, fp16 or None, got 'fp64'"),
        ({"compile": 1}, "compile must be True, False or the name of a backend, got 1"),
        ({"train": (torch.ones(3), torch.ones(2))}, r"must be equally long, got \[3, 2\]"),
        ({"metrics": {"odd": lambda output, target: output}}, "metric odd must give one value for each"),
    ],
)
def test_parts_that_can_not_be_used(options, words):
    with pytest.raises(ConfigurationError, match=words):
        curve(1, **options)


def test_a_build_that_gives_something_else():
    class Wrong(Trainer):
        def build(self, params: Mapping[str, Any]) -> Any:
            return mlp()

    with pytest.raises(ConfigurationError, match=r"Wrong\.build must give Parts\(model, \.\.\.\), got Sequential"):
        Wrong(FakeTrial())
