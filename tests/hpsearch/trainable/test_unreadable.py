"""What a message says to save in place of an entry that can't be read back can be saved, and holds the same."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hpsearch.errors import CheckpointError
from hpsearch.trainable.state_file import load_file, save_state


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
