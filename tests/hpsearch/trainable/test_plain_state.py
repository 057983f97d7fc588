"""What is taken for sure to be read back is read back, whatever it is."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpsearch.trainable.state_file import is_plain

TENSORS = st.builds(
    lambda dtype, shape: torch.ones(shape).to(dtype),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]),
    st.lists(st.integers(0, 3), max_size=3),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | TENSORS
    | TENSORS.map(lambda tensor: tensor.T if tensor.dim() == 2 else tensor)
    | TENSORS.filter(torch.is_floating_point).map(nn.Parameter)
)
KEYS = st.text() | st.integers(0, 99) | st.floats(allow_nan=False) | st.booleans() | st.tuples(st.integers(0, 3))
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict)
        | inner.map(lambda one: [one, one])
    ),
    max_leaves=12,
)


def read_back(state: object) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True, map_location="cpu")


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return (isinstance(one, float) and math.isnan(one) and math.isnan(other)) or one == other


@given(STATES)
def test_what_is_plain_is_read_back_as_it_was(state):
    assert is_plain(state)
    assert same(read_back(state), state)


def test_what_a_module_and_its_optimizer_keep_is_plain():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for optimizer in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), momentum=0.9)):
        model(torch.ones(5, 3)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        assert is_plain(state)
        assert read_back(state)["epoch"] == 3


class Text(str):
    """A text of a class that nobody knows elsewhere."""


def holding_itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(10_000):
        made = [made]
    return made


def with_attribute() -> torch.Tensor:
    made = torch.ones(2)
    made.note = Text("x")  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    "value",
    [
        Text("x"),
        2**63,
        {1, 2},
        b"x",
        1j,
        nn.Linear(1, 1),
        torch.float32,
        torch.ones(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex64),
        holding_itself(),
        deep(),
        torch.imag(torch.ones(2, dtype=torch.complex64).conj()),
        with_attribute(),
        torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
        OrderedDict,
    ],
    ids=lambda value: type(value).__name__,
)
def test_of_everything_else_nothing_is_taken_for_sure_however_deep_it_lies(value):
    for state in (value, [value], {"a": (value,)}, OrderedDict(a={"b": [value]})):
        assert not is_plain(state)


def test_a_dictionary_with_an_attribute_is_as_plain_as_that():
    state = OrderedDict(a=1)
    state.note = {1}  # type: ignore[attr-defined]
    assert not is_plain(state)
