from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.errors import TrainableError
from hpsearch.trainable.metrics import to_numbers


@given(st.floats(allow_nan=False) | st.integers(-(10**300), 10**300) | st.booleans())
def test_plain_numbers_become_floats(value: float) -> None:
    numbers = to_numbers({"loss": value}, ("loss",))
    assert numbers == {"loss": float(value)}
    assert type(numbers["loss"]) is float


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.5),
        np.array(0.5),
        np.array([[0.5]]),
        torch.tensor(0.5),
        torch.tensor([0.5], requires_grad=True),
    ],
)
def test_scalars_of_numpy_and_torch_become_floats(value: object) -> None:
    numbers = to_numbers({"loss": value}, ("loss",))
    assert numbers == {"loss": 0.5}
    assert type(numbers["loss"]) is float


def test_numpys_bool_and_nan_pass() -> None:
    numbers = to_numbers({"loss": np.bool_(True), "other": math.nan}, ("loss",))
    assert numbers["loss"] == 1.0
    assert math.isnan(numbers["other"])


@pytest.mark.parametrize(
    ("value", "described"),
    [
        ("high", "a str, 'high'"),
        (None, "a NoneType, None"),
        ([1.0], "a list, [1.0]"),
        (1j, "a complex, 1j"),
        (np.zeros(3), "a numpy.ndarray of shape (3,)"),
        (torch.zeros(2, 2), "a torch.Tensor of shape (2, 2)"),
        (np.datetime64("2020-01-01"), "a numpy.datetime64"),
        ("x" * 100, "..."),
        (10**400, "beyond 1e308"),
    ],
)
def test_what_is_no_number_is_refused_by_name(value: object, described: str) -> None:
    with pytest.raises(TrainableError) as raised:
        to_numbers({"loss": 1.0, "lr": value}, ("loss",))
    assert "the metric 'lr' must" in str(raised.value)
    assert described in str(raised.value)


@pytest.mark.parametrize("metrics", [0.5, None, [("loss", 1.0)]])
def test_a_report_that_is_no_mapping_is_refused_with_an_example(metrics: object) -> None:
    with pytest.raises(TrainableError, match=r'write \{"loss": 0\.9\}'):
        to_numbers(metrics, ("loss",))


def test_a_name_that_is_no_text_is_refused() -> None:
    for name in (3, ""):
        with pytest.raises(TrainableError, match="the name of a metric"):
            to_numbers({"loss": 1.0, name: 2.0}, ("loss",))


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        ({"acuracy": 1.0, "loss": 2.0}, "has 'acuracy', 'loss': did you mean 'acuracy'?"),
        ({"loss": 1.0}, "has 'loss': report it"),
        ({}, "has nothing: report it"),
    ],
)
def test_a_report_without_the_sweeps_metric_is_refused_with_the_nearest_name(
    reported: dict[str, float], says: str
) -> None:
    with pytest.raises(TrainableError) as raised:
        to_numbers(reported, ("accuracy",))
    assert "the sweep's metric 'accuracy'" in str(raised.value)
    assert says in str(raised.value)


def test_what_went_wrong_in_computing_a_scalar_isnt_taken_for_another_kind_of_metric() -> None:
    class OnBrokenDevice:
        shape = ()

        def item(self) -> float:
            raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        to_numbers({"loss": OnBrokenDevice()}, ("loss",))
