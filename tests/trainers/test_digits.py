from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hpsearch_trainers
from hpsearch_trainers.digits import MLP, cnn, digits, mlp
from hpsearch_trainers.noop import train


class Trial:
    """A trial that keeps its reports and every state that it is offered."""

    def __init__(self, params: dict[str, Any], start: int, end: int, checkpoint: object = None) -> None:
        self.params = params
        self.checkpoint: Any = checkpoint
        self.metrics: list[Mapping[str, float]] = []
        self.states: list[dict[str, Any]] = []
        self._steps = range(start + 1, end + 1)

    def iterations(self) -> Iterator[int]:
        yield from self._steps

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        self.metrics.append(metrics)
        if callable(checkpoint):
            self.states.append(checkpoint())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def test_the_split_is_fixed_and_stratified() -> None:
    split = digits()
    assert split.images.shape == (1437, 1, 8, 8)
    assert split.validation_images.shape == (360, 1, 8, 8)
    assert (float(split.images.min()), float(split.images.max())) == (0.0, 1.0)
    counts = torch.bincount(split.validation_labels)
    assert counts.min() >= 34
    assert counts.max() <= 38
    assert digits() is split
    digits.cache_clear()
    assert torch.equal(digits().validation_images, split.validation_images)


@pytest.mark.parametrize(("trainable", "lr"), [(mlp, 0.1), (cnn, 0.05)])
def test_a_good_rate_learns_the_digits_with_all_else_at_its_default(
    trainable: Callable[[Trial], None], lr: float
) -> None:
    trial = Trial({"lr": lr}, 0, 15)
    trainable(trial)
    assert max(metrics["accuracy"] for metrics in trial.metrics) > 0.965
    assert trial.metrics[-1]["loss"] < trial.metrics[0]["loss"] / 5


@pytest.mark.parametrize(
    ("trainable", "params"),
    [
        (mlp, {"hidden": 16, "lr": 0.2, "momentum": 0.5, "dropout": 0.3, "weight_decay": 1e-4, "batch_size": 64}),
        (cnn, {"channels": 4, "lr": 0.2, "momentum": 0.5, "dropout": 0.3, "weight_decay": 1e-4, "batch_size": 64}),
    ],
)
def test_every_parameter_changes_the_training(trainable: Callable[[Trial], None], params: dict[str, Any]) -> None:
    def losses(chosen: dict[str, Any]) -> list[float]:
        torch.manual_seed(0)
        trial = Trial(chosen, 0, 2)
        trainable(trial)
        return [metrics["loss"] for metrics in trial.metrics]

    everything = losses(params)
    for left_out in params:
        assert losses({name: value for name, value in params.items() if name != left_out}) != everything


@pytest.mark.parametrize("trainable", [mlp, cnn])
def test_a_checkpoint_holds_all_that_continues_the_training(trainable: Callable[[Trial], None]) -> None:
    params = {"hidden": 16, "channels": 2, "dropout": 0.3, "batch_size": 128}
    whole = Trial(params, 0, 3)
    trainable(whole)
    torch.manual_seed(0)
    first = Trial(params, 0, 2)
    trainable(first)
    generator = torch.get_rng_state()
    rest = Trial(params, 2, 3, _copied(first.states[-1]))
    steps = rest.iterations()
    rest.iterations = lambda: _after(lambda: torch.set_rng_state(generator), steps)  # type: ignore[method-assign]
    trainable(rest)
    assert rest.metrics == whole.metrics[2:]


def test_the_class_trains_as_the_function_does() -> None:
    function = Trial({"hidden": 16}, 0, 2)
    mlp(function)
    torch.manual_seed(0)
    model = MLP(Trial({"hidden": 16}, 0, 2))
    assert [model.step(), model.step()] == function.metrics
    other = MLP(Trial({"hidden": 16}, 0, 2))
    other.load_state_dict(_copied(model.state_dict()))
    torch.manual_seed(1)
    expected = model.step()
    torch.manual_seed(1)
    assert other.step() == expected


def test_noop_reports_in_each_iteration_and_saves_nothing() -> None:
    trial = Trial({"x": 0.5, "n": 2, "kind": "a"}, 3, 6)
    train(trial)
    assert trial.metrics == [{"value": 2.5}] * 3
    assert trial.states == []


def test_the_trainers_know_nothing_of_search() -> None:
    files = sorted(Path(hpsearch_trainers.__path__[0]).glob("*.py"))
    assert len(files) >= 4
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"hpsearch", "ray"}


def _after(action: Callable[[], object], steps: Iterator[int]) -> Iterator[int]:
    action()
    yield from steps


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return state
