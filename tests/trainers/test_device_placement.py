"""Model, optimizer, batches, losses, metrics and states all lie on the device that a trainer trains on."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset

from hpsearch.design.designed_network import DesignedNetwork
from hpsearch.design.prepared_rows import read_rows
from hpsearch.worker.gpus import without_gpus
from hpsearch_comm import Group, SyncBatchNorm
from hpsearch_comm.data_parallel.sync_batch_norm import Exchange
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.architectures import network
from hpsearch_trainers.buffers import _marks, differing
from hpsearch_trainers.digits_network import MeasuredChain
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.measures import latency
from hpsearch_trainers.precision import check_precision
from tests.hpsearch.design.test_designed_network import CLASSES as DESIGNED_CLASSES
from tests.hpsearch.design.test_designed_network import INPUTS as DESIGNED_INPUTS
from tests.hpsearch.design.test_designed_network import NUMBERS, write
from tests.stand_in_device import DEVICE, DeviceProcess, HostReads

cuda = torch.cuda.is_available()
INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
CLASSES = (INPUTS[:, 0] > 0).long()


class Rows(Dataset):
    """A map-style data set whose inputs are dictionaries."""

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, row):
        return {"features": INPUTS[row]}, CLASSES[row]


class OfFeatures(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch):
        return self.inner(batch["features"])


class Shifted(nn.Module):
    """A metric with a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.0, 0.1]))

    def forward(self, output, target):
        return ((output + self.shift).argmax(1) == target).float()


def model_of(params: Any) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 2)]
    return OfFeatures(nn.Sequential(*layers)) if params.get("rows") else nn.Sequential(*layers)


OPTIMIZERS: dict[str, Any] = {
    **{
        name: partial(getattr(torch.optim, name), lr=0.01)
        for name in ("Adagrad", "SGD", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adadelta")
    },
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "tensor rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "LARS": lambda parameters: LARS(parameters, lr=0.01, momentum=0.9),
    "LAMB": lambda parameters: LAMB(parameters, lr=0.01),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
}
WITH: dict[str, dict[str, Any]] = {
    "average": {"average": 0.9},
    "clip_norm": {"clip_norm": 0.1},
    "accumulate": {"accumulate": 2},
    "freeze_batch_norm": {"freeze_batch_norm": 1},
    "schedule": {"schedule": lambda epoch: 1 / (1 + epoch)},
    "loss": {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))},
    "metric": {"metrics": {"shifted": Shifted()}},
    "latency": {"measures": {"latency_ms": latency(INPUTS[:4], runs=2)}},
}


class Small(Trainer):
    def build(self, params):
        model = model_of(params)
        make = OPTIMIZERS[params.get("optimizer", "momentum")]
        data = Rows() if params.get("rows") else (INPUTS, CLASSES)
        parts: dict[str, Any] = {
            "loss": functional.cross_entropy,
            "train": data,
            "validation": data,
            "metrics": {"accuracy": lambda output, target: (output.argmax(1) == target).float()},
            "batch_size": 16,
        }
        optimizer = (lambda model: make(model.parameters())) if params.get("late") else make(model.parameters())
        return Parts(model, optimizer, **parts | copy.deepcopy(WITH.get(params.get("with"), {})))


class Alternating(Small):
    """Steps with two optimizers in turns, one of which allocates its state before the model is on its device."""

    def build(self, params: Any) -> Parts:
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        self.second = torch.optim.Adagrad(parts.model.parameters(), lr=0.01)
        return parts

    def step(self) -> dict[str, float]:
        for number, (inputs, targets) in enumerate(self.train_batches()):
            optimizer: Any = self.second if number % 2 else self.optimizer
            optimizer.zero_grad()
            self.parts.loss(self.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return self.validate()


class Convolutions(Trainer):
    """A network whose widths a child may inherit in part."""

    def build(self, params):
        torch.manual_seed(params["channels"])
        layers = [{"conv": {"channels": params["channels"], "norm": "batch"}}]
        model = network(layers, (1, 4, 4), 2, head=["global_pool"], path="layers")
        images = torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            functional.cross_entropy,
            train=(images, CLASSES[:32]),
            validation=(images, CLASSES[:32]),
            average=params.get("average"),
        )


def trial(params: Any, **more: Any) -> Any:
    return SimpleNamespace(params=params, seed=0, **more)


def on_host(state: Any) -> Any:
    """Return a state as it is loaded from a file."""
    return tree_map(lambda one: one.detach().cpu().clone() if isinstance(one, Tensor) else one, state)


def check_placed(trainer: Trainer) -> None:
    """See that all tensors of a trainer's state but single numbers are where it trains."""
    of_parts = [part for part in (trainer.parts.loss, *trainer.parts.metrics.values()) if isinstance(part, nn.Module)]
    tensors = tree_leaves([trainer.state_dict(), [part.state_dict() for part in of_parts]])
    assert {one.device.type for one in tensors if isinstance(one, Tensor) and one.dim() > 0} == {trainer.device.type}


def steps(params: Any) -> Any:
    """Train for two epochs, and for the second one again from the state after the first."""
    trainer = Small(trial(params))
    trainer.step()
    state = on_host(trainer.state_dict())
    found = trainer.step()
    check_placed(trainer)
    again = Small(trial(params))
    again.load_state_dict(state)
    assert comparable(again.step()) == pytest.approx(comparable(found), rel=1e-5)
    check_placed(again)
    fork = Small(trial(params, parent=0))
    fork.load_state_dict(state)
    fork.step()
    check_placed(fork)
    ends = (tree_leaves(on_host(one.model.state_dict())) for one in (again, trainer))
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(*ends, strict=True))
    return comparable(found)


def comparable(metrics: Any) -> Any:
    return {name: value for name, value in metrics.items() if name not in ("data_wait", "latency_ms", "fit_seconds")}


def alternating() -> Any:
    trainer = Alternating(trial({}))
    check_placed(trainer)
    metrics = trainer.step()
    check_placed(trainer)
    return comparable(metrics)


def child(average: float | None) -> Any:
    parent = Convolutions(trial({"channels": 4, "average": average}))
    parent.step()
    state = on_host(parent.state_dict())
    grown = Convolutions(trial({"channels": 6, "average": average}, start=0, parent_checkpoint=state))
    found = grown.validate()
    grown.step()
    check_placed(grown)
    return found


def measured_chain() -> Any:
    torch.manual_seed(0)
    trainer = MeasuredChain(trial({"layers": ["pool"], "batch_size": 512}))
    metrics = trainer.step()
    assert metrics["latency_ms"] > 0
    return comparable(metrics)


def designed(data: str, goal: str, delivered: bool) -> Any:
    params = {"goal": goal, "epochs": 6, "width": 8, "batch_size": 16, "data": data, "latency": True}
    torch.manual_seed(0)
    trainer = DesignedNetwork(trial(params | ({"validated": 0} if delivered else {})))
    metrics = trainer.step()
    if delivered:
        before = trainer.predictions(trainer.rows)
        network = trainer.delivered()
        after = trainer.predictions(trainer.rows)
        assert all(one.device.type == "cpu" for one in network.parameters())
        assert np.allclose(before, after, rtol=1e-4)
    return comparable(metrics), trainer.predictions(trainer.rows)


class Gpu:
    """This process, where it has a GPU."""

    def run(self, task: Any, *arguments: Any) -> Any:
        return task(*arguments)


@pytest.fixture(
    scope="module",
    params=[
        "stand-in",
        pytest.param("GPU", marks=[pytest.mark.gpu, pytest.mark.skipif(not cuda, reason="needs a GPU")]),
    ],
)
def device(request):
    return Gpu() if request.param == "GPU" else request.getfixturevalue("stand_in")


@pytest.fixture(scope="module")
def stand_in():
    process = DeviceProcess()
    yield process
    process.close()


def on_the_cpu(task: Any, *arguments: Any) -> Any:
    with without_gpus():
        return task(*arguments)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_steps_where_the_model_is_whenever_it_was_made(device, optimizer):
    params = {"optimizer": optimizer}
    found = device.run(steps, params)
    assert found == pytest.approx(on_the_cpu(steps, params), rel=0.02, abs=0.03)


def test_other_optimizers_step_where_the_model_is(device):
    found = device.run(alternating)
    assert found == pytest.approx(on_the_cpu(alternating), rel=0.02, abs=0.03)


@pytest.mark.parametrize(
    "params", [*({"with": name} for name in WITH), {"rows": True}, {"late": True}], ids=[*WITH, "rows", "late"]
)
def test_what_parts_name_works_where_the_model_is(device, params):
    assert device.run(steps, params) == pytest.approx(on_the_cpu(steps, params), rel=0.02, abs=0.03)


@pytest.mark.parametrize("average", [None, 0.5])
def test_a_child_inherits_from_a_state_on_the_cpu(device, average):
    assert device.run(child, average) == pytest.approx(on_the_cpu(child, average), rel=0.02, abs=0.03)


def test_a_chain_is_measured_where_it_is(device):
    assert device.run(measured_chain) == pytest.approx(on_the_cpu(measured_chain), rel=0.02, abs=0.03)


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("targets", [DESIGNED_CLASSES, NUMBERS])
def test_a_designed_network_predicts_where_it_is(device, tmp_path, targets, delivered):
    data = write(tmp_path, DESIGNED_INPUTS, targets)
    goal = "rmse" if targets is NUMBERS else "accuracy"
    expected = on_the_cpu(designed, data, goal, delivered)
    read_rows.cache_clear()
    metrics, predictions = device.run(designed, data, goal, delivered)
    assert metrics == pytest.approx(expected[0], rel=0.02, abs=0.03)
    assert np.allclose(predictions, expected[1], rtol=0.02, atol=0.02)


class AloneInGroup:
    """The statistics of one rank."""

    def allgather(self, tensor: Tensor) -> Tensor:
        return tensor

    def allreduce(self, tensor: Tensor, op: str) -> Tensor:
        return tensor


def normalized(momentum: float | None) -> Any:
    layers = nn.BatchNorm1d(3, momentum=momentum), SyncBatchNorm(3, Exchange(AloneInGroup()), momentum=momentum)
    given = INPUTS[:8, :3]
    results = []
    for layer in layers:
        layer.to(DEVICE)
        inputs = given.to(DEVICE).requires_grad_()
        with HostReads() as reads:
            for _ in range(2):
                outputs = layer(inputs)
                (outputs**3).sum().backward()
        results.append(on_host([outputs, inputs.grad, layer.state_dict()]))
    assert reads == []
    (plain, ours) = map(tree_leaves, results)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(plain, ours, strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_synchronized_normalization_never_waits_for_the_device(stand_in, momentum):
    stand_in.run(normalized, momentum)


class TwoRanks:
    """Gathers this rank's marks of tensors and those of another one."""

    def __init__(self, others: Any) -> None:
        self.others = others

    def allgather_object(self, own: Any) -> Any:
        return [own, _marks(self.others)]


def found_apart() -> Any:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(100, 3, generator=generator), torch.arange(7), torch.rand(5, dtype=torch.float64)]
    tensors += [
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.bfloat16),
        torch.tensor(0.0),
        torch.randn(2, dtype=torch.complex64),
    ]
    own = [one.to(DEVICE) for one in tensors] + [torch.ones(2)]
    answers = []
    for number in range(len(own)):
        others = [one.clone() for one in own]
        changed = others[number].reshape(-1)[-1:]
        changed.copy_(~changed if changed.dtype == torch.bool else -changed if changed.any() else torch.tensor(-0.0))
        with HostReads() as reads:
            apart = differing(own, cast(Group, TwoRanks(others)))
        answers.append([position for position, one in enumerate(own) if any(one is other for other in apart)])
        assert len(reads) == 2, "one for each rank, which are both here"
    return answers


def test_tensors_of_other_bits_are_found_without_copying_them_to_the_host(stand_in):
    assert stand_in.run(found_apart) == [[number] for number in range(8)]


def mixed() -> str:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        nn.Linear(2, 2).to(DEVICE)(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="on the same device as the indexed"):
        torch.ones(2)[torch.tensor([0], device=DEVICE)]
    kept = torch.ones(3, device=DEVICE)
    kept[torch.tensor([0])] = 2.0
    kept += torch.tensor(1.0)
    return str(kept.cpu().tolist())


def test_the_device_fails_where_tensors_are_mixed_as_cuda_does(stand_in):
    assert stand_in.run(mixed) == "[3.0, 2.0, 2.0]"


def test_a_gpu_that_only_emulates_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    check_precision(torch.device("cuda"), None)
    check_precision(torch.device("cpu"), torch.bfloat16)
    check_precision(torch.device("cuda"), torch.float16)
    with pytest.raises(ConfigurationError, match=r"must be fp16 or None .* on Tesla T4"):
        check_precision(torch.device("cuda"), torch.bfloat16)
