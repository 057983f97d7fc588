from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hpsearch_trainers
from hpsearch.trainable.trainables import resolve_trainable
from hpsearch_trainers.digits import CNN, MLP, digits
from hpsearch_trainers.noop import train
from hpsearch_trainers.trainer import Trainer


def trained(network: type[Trainer], params: Mapping[str, Any], seed: int = 0) -> Trainer:
    """Make it as a worker does, which seeds the global generators with the trial's seed."""
    torch.manual_seed(seed)
    trial: Any = SimpleNamespace(params=params, seed=seed)
    return network(trial)


def epochs(training: Trainer, count: int) -> list[dict[str, float]]:
    return [training.step() for _ in range(count)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
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


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_images_and_their_split_are_scikit_learns(seed: int) -> None:
    pixels, classes = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, classes, test_size=360, stratify=classes, random_state=seed)
    images, validation_images, labels, validation_labels = map(torch.from_numpy, parts)
    split = digits(seed)
    assert torch.equal(split.images.flatten(1), images.float())
    assert torch.equal(split.validation_images.flatten(1), validation_images.float())
    assert torch.equal(split.labels, labels)
    assert torch.equal(split.validation_labels, validation_labels)


@pytest.mark.parametrize(("name", "network"), [("mlp", MLP), ("cnn", CNN), ("MLP", MLP), ("CNN", CNN)])
def test_the_names_that_a_sweep_may_give(name: str, network: type[Trainer]) -> None:
    assert resolve_trainable(f"hpsearch_trainers.digits:{name}") is network


def test_trials_with_one_seed_differ_by_their_other_parameters_alone() -> None:
    """First weights, order of rows and dropout follow from it, and not from the trial's own."""
    params = {"dropout": 0.5}

    def losses(given: int | None, own: int) -> list[float]:
        return [metrics["loss"] for metrics in epochs(trained(MLP, params | {"seed": given}, own), 2)]

    assert losses(3, 0) == losses(3, 1)
    assert len({tuple(losses(given, 0)) for given in (3, 4, None)}) == 3
    assert losses(None, 0) != losses(None, 1)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("network", "lr"), [(MLP, 0.1), (CNN, 0.05)])
def test_a_good_rate_learns_the_digits_with_all_else_at_its_default(network: type[Trainer], lr: float) -> None:
    found = epochs(trained(network, {"lr": lr}), 15)
    assert max(metrics["accuracy"] for metrics in found) > 0.965
    assert found[-1]["loss"] < found[0]["loss"] / 5
    assert found[-1]["global_batch"] == 32


@pytest.mark.parametrize(("network", "own"), [(MLP, {"hidden": 16}), (CNN, {"channels": 4})])
def test_every_parameter_changes_the_training(network: type[Trainer], own: dict[str, Any]) -> None:
    params = own | {"lr": 0.2, "momentum": 0.5, "dropout": 0.3, "weight_decay": 1e-4, "batch_size": 64}

    def losses(chosen: dict[str, Any]) -> list[float]:
        return [metrics["loss"] for metrics in epochs(trained(network, chosen), 2)]

    everything = losses(params)
    for left_out in params:
        assert losses({name: value for name, value in params.items() if name != left_out}) != everything


@pytest.mark.parametrize("network", [MLP, CNN])
def test_a_trial_follows_from_its_seed_and_is_continued_to_the_bit(network: type[Trainer]) -> None:
    params = {"hidden": 16, "channels": 2, "dropout": 0.3, "batch_size": 128}
    whole = epochs(trained(network, params), 3)
    first = trained(network, params)
    begun = epochs(first, 2)
    rest = trained(network, params, seed=1)
    assert epochs(rest, 2) != begun
    rest = trained(network, params)
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    assert begun + epochs(rest, 1) == whole


class Reports:
    """A trial that keeps its reports."""

    checkpoint = None

    def __init__(self, params: dict[str, Any], start: int, end: int) -> None:
        self.params = params
        self.metrics: list[Mapping[str, float]] = []
        self.states: list[object] = []
        self._steps = range(start + 1, end + 1)

    def iterations(self) -> Iterator[int]:
        yield from self._steps

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        self.metrics.append(metrics)
        self.states.append(checkpoint)


def test_noop_reports_in_each_iteration_and_saves_nothing() -> None:
    trial = Reports({"x": 0.5, "n": 2, "kind": "a"}, 3, 6)
    train(trial)
    assert trial.metrics == [{"value": 2.5}] * 3
    assert trial.states == [None] * 3


MOVED = {"data_sets.py", "designed_network.py"}
"""Documented paths of what is in hpsearch.design now."""


def test_the_trainers_know_nothing_of_search() -> None:
    files = [file for file in sorted(Path(hpsearch_trainers.__path__[0]).glob("*.py")) if file.name not in MOVED]
    assert len(files) >= 4
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"hpsearch", "ray"}
