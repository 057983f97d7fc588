"""Networks for prepared rows: nothing leaks between folds, scores are exact, and what is delivered was trained."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

from hpsearch.design.designed_network import DesignedNetwork, architecture, flops, mirrored, parameter_count, shifted
from hpsearch.design.prepared_rows import assign_folds, even_batch, read_rows, read_task, training_rows
from hpsearch.design.scores import SCORES, score
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.architectures import standalone

CHANCE = np.random.default_rng(0)
INPUTS = CHANCE.standard_normal((90, 4)).astype(np.float32)
CLASSES = (INPUTS[:, 0] + 0.3 * CHANCE.standard_normal(90) > 0).astype(np.int64) + (INPUTS[:, 1] > 1)
NUMBERS = (1000 + 50 * INPUTS[:, 0]).astype(np.float32)


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    read_rows.cache_clear()
    read_task.cache_clear()


def test_the_paths_in_trainers_lead_here():
    from hpsearch.design.data_sets import prepare
    from hpsearch_trainers import data_sets, designed_network

    assert designed_network.DesignedNetwork is DesignedNetwork
    assert data_sets.prepare is prepare


def write(folder: Path, rows: Any, targets: Any, **more: Any) -> str:
    """Write rows as `prepare` leaves them."""
    numbers = targets.dtype.kind == "f"
    task = {
        "kind": "numbers" if numbers else "classes",
        "classes": None if numbers else [f"c{one}" for one in range(int(targets.max()) + 1)],
        "inputs": list(rows.shape[1:]),
        "target_mean": float(targets.astype(np.float64).mean()) if numbers else 0.0,
        "target_scale": float(targets.astype(np.float64).std()) if numbers else 1.0,
        **more,
    }
    folder.mkdir(exist_ok=True)
    (folder / "task.json").write_text(json.dumps(task))
    np.savez(folder / "search.npz", inputs=rows, targets=targets)
    read_rows.cache_clear()
    read_task.cache_clear()
    return str(folder / "search.npz")


def trained(data: str, epochs: int = 2, seed: int = 0, **params: Any) -> DesignedNetwork:
    torch.manual_seed(seed)
    given = {"goal": "accuracy", "epochs": max(6, epochs), "width": 16, "batch_size": 16, **params, "data": data}
    training = DesignedNetwork(SimpleNamespace(params=given, seed=seed))
    for _ in range(epochs):
        training.step()
    return training


def weights(training: DesignedNetwork, number: int) -> list[torch.Tensor]:
    return list(training.model.networks[number].state_dict().values())


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("targets", "goal"), [(CLASSES, "accuracy"), (CLASSES, "f1"), (NUMBERS, "rmse")])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_no_network_learns_from_the_rows_that_it_validates(tmp_path, targets, goal, norm):
    """To the bit: with other inputs in fold 1, and other numbers there, network 1 is the same; the others aren't."""
    before = trained(write(tmp_path / "one", INPUTS, targets), goal=goal, norm=norm)
    held = before._folds == 1
    inputs, others = INPUTS.copy(), targets.copy()
    inputs[held] = 7 * inputs[held][::-1] + 1
    if targets is NUMBERS:
        others[held] += 0.001  # in the same order, from which the folds follow
    after = trained(write(tmp_path / "two", inputs, others), goal=goal, norm=norm)
    assert (after._folds == before._folds).all()
    assert all(map(torch.equal, weights(before, 1), weights(after, 1)))
    assert not all(map(torch.equal, weights(before, 0), weights(after, 0)))


def test_labels_of_chance_are_predicted_no_better_than_by_chance(tmp_path):
    chance = np.random.default_rng(1)
    inputs = chance.standard_normal((200, 10)).astype(np.float32)
    training = trained(write(tmp_path, inputs, chance.integers(0, 2, 200)), epochs=15, width=64, lr=0.01)
    assert 0.3 < training.validate()["accuracy"] < 0.65


@pytest.mark.parametrize("targets", [CLASSES, NUMBERS])
def test_every_row_is_validated_once_and_the_scores_are_those_of_all_rows(tmp_path, targets):
    goal = "rmse" if targets is NUMBERS else "accuracy"
    training = trained(write(tmp_path, INPUTS, targets), goal=goal)
    given, rows = training.validated()
    assert sorted(rows) == list(range(90))
    found, true = training.validate(), targets[rows]
    if targets is NUMBERS:
        expected = {
            "rmse": metrics.root_mean_squared_error(true, given),
            "mae": metrics.mean_absolute_error(true, given),
            "r2": metrics.r2_score(true, given),
        }
    else:
        guess = given.argmax(1)
        expected = {
            "accuracy": metrics.accuracy_score(true, guess),
            "balanced_accuracy": metrics.balanced_accuracy_score(true, guess),
            "f1": metrics.f1_score(true, guess, average="macro"),
            "log_loss": metrics.log_loss(true, given, labels=[0, 1, 2]),
        }
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_prediction_that_is_no_number_has_no_score():
    given = np.array([[np.nan, 0.1], [0.2, 0.8]])
    assert all(np.isnan(score(name, given, np.array([0, 1]))) for name in SCORES if SCORES[name].kind == "classes")


def test_numbers_far_from_0_are_learned_and_come_back_in_their_unit(tmp_path):
    training = trained(write(tmp_path, INPUTS, NUMBERS), epochs=40, goal="rmse", depth=0, lr=0.05, weight_decay=0.0)
    assert training.validate()["rmse"] < 0.2 * NUMBERS.std()


def test_equal_rows_are_in_the_same_fold_and_folds_have_their_share_of_each_class():
    inputs = np.concatenate([INPUTS, INPUTS[:30]])
    folds = assign_folds(inputs, np.concatenate([CLASSES, CLASSES[:30]]), 5, 0)
    assert (folds[90:] == folds[:30]).all()
    plain = assign_folds(INPUTS, CLASSES, 5, 0)
    counts = np.array([np.bincount(CLASSES[plain == fold], minlength=3) for fold in range(5)])
    assert (np.ptp(counts.sum(1)), np.ptp(counts, 0).max()) <= (0, 2)


@pytest.mark.parametrize("validated", [0, 1, 3])
def test_networks_train_on_all_rows_but_their_folds(validated):
    folds = np.where((dealt := assign_folds(INPUTS, CLASSES, 4, 0)) < validated, dealt, -1)
    rows = training_rows(folds, validated, 0)
    for number in range(max(1, validated)):
        expected = np.flatnonzero(folds != number) if validated else np.arange(90)
        assert set(rows[:, number].tolist()) == set(expected.tolist())


@pytest.mark.parametrize("rows", [2, 15, 33, 65, 100, 129, 1437])
def test_the_last_batch_is_no_rest_of_a_few_rows(rows):
    for wanted in (16, 32, 64):
        batch = even_batch(rows, wanted)
        rest = rows % batch
        assert rest == 0 or rest >= min(8, batch), (rows, wanted, batch)
        assert batch <= 2 * wanted


def test_a_trial_goes_on_from_its_state_as_if_nothing_had_been_between(tmp_path):
    data = write(tmp_path, INPUTS, CLASSES)
    whole = trained(data, epochs=4, norm="batch", dropout=0.3)
    half = trained(data, epochs=2, norm="batch", dropout=0.3)
    again = trained(data, epochs=0, seed=0, norm="batch", dropout=0.3)
    again.load_state_dict(half.state_dict())
    again.step(), again.step()
    assert all(map(torch.equal, weights(whole, 3), weights(again, 3)))


@pytest.mark.parametrize("targets", [CLASSES, NUMBERS])
def test_the_file_of_a_delivered_network_gives_what_was_trained(tmp_path, targets):
    """With the statistics of its batch normalization and without dropout; numbers by the scale of task.json."""
    goal = "rmse" if targets is NUMBERS else "accuracy"
    more: dict[str, Any] = {"norm": "batch", "dropout": 0.5, "embedding": "periodic"}
    training = trained(write(tmp_path, INPUTS, targets), goal=goal, validated=0, **more)
    rows = training.rows
    expected = training.predictions(rows)
    network = training.delivered()
    given = architecture(training.params, rows.task)
    source = standalone(given.pop("value"), **given)
    names: dict[str, Any] = {"__name__": "delivered"}
    exec(compile(source, "network.py", "exec"), names)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    loaded = names["load"](str(tmp_path / "weights.pt")).eval()
    with torch.no_grad():
        outputs = loaded(torch.from_numpy(INPUTS)).double()
    if targets is NUMBERS:
        found = (outputs[:, 0] * rows.task.target_scale + rows.task.target_mean).numpy()
    else:
        found = outputs.softmax(1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_network_that_did_not_train_on_all_rows_is_not_delivered(tmp_path):
    with pytest.raises(ConfigurationError, match="only a network that trained on all rows"):
        trained(write(tmp_path, INPUTS, CLASSES)).delivered()


def test_counts_are_those_of_one_network(tmp_path):
    training = trained(write(tmp_path, INPUTS, CLASSES), epochs=0)
    single = sum(weight.numel() for weight in training.model.networks[0].parameters())
    assert parameter_count(training.params) == single == 4 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3
    assert flops(training.params) == 2 * (4 * 16 + 16 * 16 + 16 * 3)


@pytest.mark.parametrize(
    "block", ["conv", *(pytest.param(rest, marks=pytest.mark.exhaustive) for rest in ("residual", "separable"))]
)
def test_images_train_in_bytes_with_their_channels_scaled(tmp_path, block):
    images = CHANCE.integers(0, 256, (40, 2, 8, 8)).astype(np.uint8)
    images[20:, 0, :4] = 255
    channels = {"channel_means": [128.0, 128.0], "channel_scales": [74.0, 74.0]}
    data = write(tmp_path, images, np.arange(40) // 20, **channels)
    params = {"block": block, "blocks": 2, "channels": 8, "shift": 1, "mirror": True, "folds": 2, "validated": 2}
    assert trained(data, epochs=12, lr=0.02, batch_size=8, **params).validate()["accuracy"] > 0.8


def test_shifts_repeat_the_border_and_mirrors_swap_left_and_right():
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    torch.manual_seed(0)
    seen = {tuple(shifted(image, 1).flatten().tolist()) for _ in range(200)}
    assert len(seen) == 9
    assert (0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 3.0, 3.0, 4.0) in seen
    many = mirrored(image.expand(20, 1, 3, 3))
    assert {tuple(one[0, 0].tolist()) for one in many} == {(0.0, 1.0, 2.0), (2.0, 1.0, 0.0)}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"goal": "rmse"}, "goal must be one for classes, of accuracy, balanced_accuracy, f1, log_loss; got 'rmse'"),
        ({"validated": 6}, "validated must be from 0 to the 5 folds, got 6"),
        ({"folds": 91, "validated": 2}, "there must be at least 91 different rows for 91 folds, got 90"),
        ({"folds": 1, "validated": 1}, "folds must be at least 2, got 1"),
    ],
)
def test_mistakes_are_told(tmp_path, params, told):
    with pytest.raises(ConfigurationError, match=told):
        trained(write(tmp_path, INPUTS, CLASSES), **params)


def test_rows_that_do_not_fit_their_task_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"must hold rows of the shape \[3\] and a target for each"):
        trained(write(tmp_path, INPUTS, CLASSES, inputs=[3]))
    with pytest.raises(ConfigurationError, match="must hold classes from 0 to 1"):
        trained(write(tmp_path, INPUTS, CLASSES, classes=["a", "b"]))
    with pytest.raises(ConfigurationError, match="moved away they aren't found"):
        trained(str(tmp_path / "elsewhere.npz"))
