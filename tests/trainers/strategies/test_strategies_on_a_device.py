"""What ranks send each other lies in host memory, and what they train with on their device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from hpsearch.sweep.parallel import ON_THE_HOST
from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.strategies import STRATEGIES as ALL
from tests.comm.thread_ranks import run_ranks
from tests.stand_in_device import DEVICE, DeviceProcess, on_ranks
from tests.trainers.test_trainer import building

INPUTS = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
CLASSES = (INPUTS[:, 0] > 0).long()
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "pipeline": (2, {"strategy": "pipeline"}),
    "parameter_server": (3, {"strategy": "parameter_server", "servers": 1}),
    "downpour": (3, {"strategy": "downpour", "servers": 1}),
    "local_sgd": (2, {"strategy": "local_sgd"}),
    "average_once": (2, {"strategy": "average_once"}),
}


class Small(Trainer):
    def build(self, params):
        with building:  # ranks are threads here, which share torch's generator
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            functional.cross_entropy,
            train=(INPUTS, CLASSES),
            validation=(INPUTS, CLASSES),
            batch_size=16,
            clip_norm=1.0 if params["clips"] else None,
        )


def trained_on(group: Group, parallel: dict[str, Any], clips: bool) -> tuple[float, set[str]]:
    """Train on a rank; return the last loss, and where the state is."""
    trainer = Small(SimpleNamespace(params={"clips": clips}, seed=0, group=group, parallel=parallel))
    metrics = [trainer.step() for _ in range(2)]
    state = trainer.state_dict()
    tensors = [one for one in tree_leaves([state["model"], state["optimizer"]]) if isinstance(one, Tensor)]
    return metrics[-1]["validation_loss"], {one.device.type for one in tensors if one.dim() > 0}


def trained(parallel: dict[str, Any], size: int, clips: bool) -> Any:
    return on_ranks(size, lambda group: trained_on(group, parallel, clips))


@pytest.fixture(scope="module")
def device():
    process = DeviceProcess()
    yield process
    process.close()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_train_on_their_device_as_on_the_cpu(device, name, clips):
    size, parallel = STRATEGIES[name]
    found = device.run(trained, parallel, size, clips)
    assert {kind for _, kinds in found for kind in kinds} == {DEVICE}
    if name != "downpour":  # whose numbers depend on who is first
        expected = run_ranks(size, lambda group: trained_on(group, parallel, clips))
        assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=0.02)


def refused(parallel: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as error:
        trained(parallel, 2, clips=False)
    return str(error.value)


def test_every_strategy_trains_on_a_device_or_is_refused_there():
    assert set(STRATEGIES) | ON_THE_HOST | {"allreduce"} == set(ALL)


@pytest.mark.parametrize("name", sorted(ON_THE_HOST))
def test_what_works_in_host_memory_alone_is_refused_on_a_device(device, name):
    assert "got a model on" in device.run(refused, {"strategy": name})
