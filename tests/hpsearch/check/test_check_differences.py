"""What differs between two runs of a trial, and how it is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch.check.differences import TrialRun, differences, value_differences
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.trace import Trace, digest, read_trace


def kinds_and_names(first: Any, second: Any) -> list[tuple[str, str]]:
    return [(entry.kind, entry.name) for entry in value_differences(first, second)]


def test_entries_of_a_state_are_named_by_what_they_are():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    first = torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, state)
    optimizer.step()
    schedule.step()
    second = {**state, "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "seen": 3}
    found = kinds_and_names(first, second)
    assert found[:2] == [("weights", "model.weight"), ("weights", "model.bias")]
    assert ("optimizer", "optimizer.state.0.momentum_buffer") in found
    assert ("learning rate", "optimizer.param_groups.0.lr") in found
    assert ("learning rate", "schedule.last_epoch") in found
    assert ("learning rate", "schedule._last_lr.0") in found
    assert found[-1] == ("state", "seen")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 2.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
        ([1, 2], [1, 2, 3]),
        ({"a": None}, {}),
        ("a", "b"),
    ],
)
def test_values_are_compared_to_the_bit(first, second):
    assert len(kinds_and_names({"value": first}, {"value": second})) == 1
    assert kinds_and_names({"value": first}, {"value": first}) == []


def test_not_a_number_is_equal_to_itself():
    assert kinds_and_names([math.nan, torch.tensor([math.nan])], [float("nan"), torch.tensor([math.nan])]) == []


def checkpoint_of(folder: Path, state: object, seed: int = 0) -> Path:
    random_state.seed_all(seed)
    return folder / checkpoints.write(folder, 2, state, random_state.capture())


def test_files_that_a_user_saved_are_compared_by_what_they_hold(tmp_path):
    runs = []
    for number, rate in enumerate([0.1, 0.2, 0.1]):
        folder = tmp_path / str(number) / "mine"
        folder.mkdir(parents=True)
        torch.save({"lr": rate}, folder / "state.pt")
        (folder / "log.txt").write_text("a" if number == 0 else "b")
        runs.append(TrialRun({1: {}}, checkpoint=checkpoint_of(tmp_path / str(number), folder)))
    found = [(one.kind, one.name, one.expected, one.got) for one in differences(runs[0], runs[1])]
    assert found == [("state", "log.txt", "1 bytes", "1 bytes"), ("learning rate", "state.pt.lr", "0.1", "0.2")]
    assert [one.name for one in differences(runs[0], runs[2])] == ["log.txt"]


def test_generators_that_stand_elsewhere_and_a_checkpoint_that_is_missing_are_differences(tmp_path):
    first, second = (TrialRun({1: {}}, checkpoint=checkpoint_of(tmp_path / str(seed), {}, seed)) for seed in (1, 2))
    assert {one.name for one in differences(first, second)} == {
        "global generator of python",
        "global generator of numpy",
        "global generator of torch",
    }
    (missing,) = differences(first, TrialRun({1: {}}))
    assert (missing.kind, missing.expected, missing.got) == ("checkpoint", "saved", "none")


def test_each_metric_is_named_once_with_both_values_at_the_first_iteration():
    first = TrialRun({1: {"loss": 1.0, "clock": 0.1}, 2: {"loss": 0.5, "clock": 0.2}, 3: {"loss": 0.4, "clock": 0.3}})
    second = TrialRun({1: {"loss": 1.0, "clock": 0.4}, 2: {"loss": 1.0, "clock": 0.5}})
    found = [(one.kind, one.name, one.iteration, one.expected, one.got, one.note) for one in differences(first, second)]
    assert found == [
        ("length", "iterations", 3, "3", "2", ""),
        ("metric", "clock", 1, "0.1", "0.4", ""),
        ("metric", "loss", 2, "0.5", "1.0", "that of iteration 1 again"),
    ]


def trained(path: Path, order: list[int], rate: float) -> TrialRun:
    """Train one step in each of two iterations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    trace = Trace(path)
    try:
        for iteration, number in enumerate(order, 1):
            model(torch.zeros(3, 2))  # no batch that is trained on
            model(torch.full((3, 2), float(number))).sum().backward()
            optimizer.step()
            trace.reported(iteration)
    finally:
        trace.close()
    return TrialRun({1: {}, 2: {}}, read_trace(path))


def test_a_trace_tells_the_batch_and_the_rate_of_the_first_step(tmp_path):
    same = trained(tmp_path / "a", [1, 2], 0.1)
    assert differences(same, trained(tmp_path / "b", [1, 2], 0.1)) == []
    (order,) = differences(same, trained(tmp_path / "c", [1, 1], 0.1))
    assert (order.kind, order.iteration, order.note) == ("data order", 2, "those of iteration 1 again")
    (rate,) = differences(same, trained(tmp_path / "d", [1, 2], 0.2))
    assert (rate.kind, rate.iteration, rate.expected, rate.got) == ("learning rate", 1, "0.1", "0.2")


def test_a_trace_leaves_no_hook_behind(tmp_path):
    from torch.nn.modules.module import _global_forward_pre_hooks
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    trained(tmp_path / "a", [1, 2], 0.1)
    assert (len(_global_forward_pre_hooks), len(_global_optimizer_pre_hooks)) == (0, 0)


def test_a_tensor_whose_bytes_cannot_be_read_has_no_digest():
    assert digest([torch.eye(2).to_sparse()]) is None
    assert digest([torch.ones(2, dtype=torch.bfloat16)]) != digest([torch.zeros(2, dtype=torch.bfloat16)])
