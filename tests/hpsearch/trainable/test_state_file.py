"""What is taken for sure to be read back is read back; what a message says to save instead can be saved."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import math
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpsearch.errors import CheckpointError
from hpsearch.trainable.state_file import is_plain, load_file, save_state

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


class Pair(NamedTuple):
    first: int
    second: str


class Kind(enum.Enum):
    SLOW = "slow"


@dataclasses.dataclass
class Point:
    x: float


class Marked(torch.Tensor):
    pass


READ_ONLY = np.zeros(2)
READ_ONLY.flags.writeable = False


def advice(path: Path, state: Any) -> str:
    with pytest.raises(CheckpointError) as raised:
        save_state(state, path)
    return str(raised.value).partition("weights_only=True; ")[2]


@pytest.mark.parametrize(
    ("value", "form", "same"),
    [
        (np.arange(3), "torch.from_numpy(value)", lambda saved, value: np.array_equal(saved, value)),
        (READ_ONLY, "torch.from_numpy(value)", lambda saved, value: np.array_equal(saved, value)),
        (np.arange(3)[::-1], "torch.from_numpy(value.copy())", lambda saved, value: np.array_equal(saved, value)),
        (np.array(["a", "b"]), "value.tolist()", lambda saved, value: saved == ["a", "b"]),
        (np.array([b"a"]), "value.tolist()", lambda saved, value: saved == [b"a"]),
        (np.array([1, "b"], object), "value.tolist()", lambda saved, value: saved == [1, "b"]),
        (np.array([(1, 0.5)], "i4,f4"), "value.tolist()", lambda saved, value: saved == [(1, 0.5)]),
        (np.arange(3, dtype=">f4"), "value.tolist()", lambda saved, value: saved == [0.0, 1.0, 2.0]),
        (
            np.array(["2020-01-01"], "datetime64[D]"),
            'torch.from_numpy(value.view("int64"))',
            lambda saved, value: np.array_equal(saved.numpy().view("datetime64[D]"), value),
        ),
        (
            np.ones(2, np.longdouble),
            'torch.from_numpy(value.astype("float64"))',
            lambda saved, value: saved.tolist() == [1.0, 1.0],
        ),
        (np.ma.array([1, 2], mask=[False, True]), "value.tolist()", lambda saved, value: saved == [1, None]),
        (np.float64(0.5), "value.item()", lambda saved, value: saved == 0.5),
        (np.datetime64("2020-01-01"), "str(value)", lambda saved, value: np.datetime64(saved) == value),
        (torch.Generator(), "value.get_state()", lambda saved, value: torch.equal(saved, value.get_state())),
        (
            np.random.default_rng(0),
            "value.bit_generator.state",
            lambda saved, value: saved == value.bit_generator.state,
        ),
        (random.Random(0), "value.getstate()", lambda saved, value: saved == value.getstate()),
        (torch.ones(2).as_subclass(Marked), "value.detach().as_subclass(torch.Tensor)", lambda saved, value: True),
        (torch.nn.Linear(2, 2), "value.state_dict()", lambda saved, value: set(saved) == {"weight", "bias"}),
        (
            torch.optim.SGD([torch.ones(1)], lr=0.5),
            "value.state_dict()",
            lambda saved, value: saved["param_groups"][0]["lr"] == 0.5,
        ),
        (Kind.SLOW, "value.value", lambda saved, value: saved == "slow"),
        (datetime.date(2020, 1, 1), "value.isoformat()", lambda saved, value: saved == "2020-01-01"),
        (Path("a"), "str(value)", lambda saved, value: saved == "a"),
        (decimal.Decimal("0.1"), "str(value)", lambda saved, value: saved == "0.1"),
        (collections.ChainMap({"a": 1}), "dict(value)", lambda saved, value: saved == {"a": 1}),
        (collections.deque([1]), "list(value)", lambda saved, value: saved == [1]),
        (Pair(1, "a"), "tuple(value)", lambda saved, value: saved == (1, "a")),
        (Point(0.5), "dataclasses.asdict(value)", lambda saved, value: saved == {"x": 0.5}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_the_form_that_is_advised_can_be_saved(tmp_path: Path, value: Any, form: str, same: Any) -> None:
    assert advice(tmp_path / "state.pt", {"value": value}) == f"save {form}"
    names = {"value": value, "torch": torch, "dataclasses": dataclasses}
    save_state({"value": eval(form, names)}, tmp_path / "state.pt")
    assert same(load_file(tmp_path / "state.pt")["value"], value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: 0, "save what it computes from, not the function"),
        (len, "save what it computes from, not the function"),
        (functools.partial(len, "a"), "save what it computes from, not the function"),
        (torch.nn.Linear, "save its name"),
        (np.array([object()]), "save its numbers as tensors or lists, or write a directory"),
        (object(), "save its numbers as tensors or lists, or write a directory"),
    ],
    ids=repr,
)
def test_nothing_is_advised_that_cant_be_done(tmp_path: Path, value: Any, expected: str) -> None:
    assert advice(tmp_path / "state.pt", {"value": value}) == expected
