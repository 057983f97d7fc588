from __future__ import annotations

import json
from collections import deque
from itertools import count

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.space import Categorical, Constant, Declared, IntUniform, LogUniform, Space, Uniform

NESTED = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0),
        "optimizer": {"name": ["adam", "sgd"], "adam": {"beta": Uniform(0.5, 0.99)}},
        "model.depth": IntUniform(1, 4),
        "epochs": 10,
    }
)


def test_python_values_stand_for_distributions():
    assert NESTED.names == ("lr", "optimizer.name", "optimizer.adam.beta", "model.depth", "epochs")
    kinds = [type(parameter.distribution) for parameter in NESTED.parameters]
    assert kinds == [LogUniform, Categorical, Uniform, IntUniform, Constant]


def test_groups_nest_and_dotted_names_stay_flat():
    flat = NESTED.draw(0, 0)
    nested = NESTED.nest(flat)
    assert list(nested) == ["lr", "optimizer", "model.depth", "epochs"]
    assert nested["optimizer"] == {
        "name": flat["optimizer.name"],
        "adam": {"beta": flat["optimizer.adam.beta"]},
    }
    assert NESTED.flatten(nested) == flat
    assert NESTED.flatten(flat) == flat


def test_flatten_takes_half_flat_groups():
    assert NESTED.flatten({"optimizer": {"adam.beta": 0.9}, "optimizer.name": "sgd"}) == {
        "optimizer.name": "sgd",
        "optimizer.adam.beta": 0.9,
    }


def test_flatten_leaves_values_that_are_mappings_alone():
    space = Space.from_parameters({"betas": Categorical([{"a": 1}, {"a": 2}])})
    assert space.flatten({"betas": {"a": 2}}) == {"betas": {"a": 2}}


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"lrr": 1}, "lrr: isn't a parameter\n  did you mean lr?"),
        ({"optimizer": {"nam": 1}}, "optimizer.nam: isn't a parameter\n  did you mean optimizer.name?"),
        ({"optimizer": 3}, "optimizer: isn't a parameter"),
        ({"optimizer.name": "sgd", "optimizer": {"name": "sgd"}}, "optimizer.name: is there twice"),
    ],
)
def test_flatten_refuses_names_that_are_not_in_the_space(params, problem):
    with pytest.raises(SweepError) as caught:
        NESTED.flatten(params)
    assert str(caught.value).startswith(problem)


def test_check_fills_in_constants_and_orders_as_the_space():
    given_params = {"model.depth": 2, "optimizer.adam.beta": 0.9, "optimizer.name": "sgd", "lr": 1}
    checked = NESTED.check(given_params)
    assert list(checked) == list(NESTED.names)
    assert checked["epochs"] == 10
    assert repr(checked["lr"]) == "1.0"


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"lr": 2.0}, "lr: must be between 0.0001 and 1.0, got 2.0"),
        ({"lr": 0.1}, "optimizer.name: is required"),
        ({"lr": 0.1, "optimizer.name": "lion"}, "optimizer.name: must be one of the values"),
        ({"momentum": 1}, "momentum: isn't a parameter"),
    ],
)
def test_check_names_the_parameter(params, problem):
    with pytest.raises(SweepError, match=problem):
        NESTED.check(params)


def test_the_first_parameter_of_a_grid_varies_slowest():
    space = Space.from_parameters({"a": [1, 2], "b": {"c": ["x", "y", "z"]}, "d": 7})
    points = [tuple(space.grid_point(index).values()) for index in range(space.grid_size)]
    assert points == [(1, "x", 7), (1, "y", 7), (1, "z", 7), (2, "x", 7), (2, "y", 7), (2, "z", 7)]
    with pytest.raises(SweepError, match="between 0 and 5, got 6"):
        space.grid_point(6)


def test_a_grid_names_the_parameter_that_lacks_points():
    with pytest.raises(SweepError, match=r"optimizer\.lr\.points: is required") as caught:
        _ = Space.from_parameters({"optimizer": {"lr": Uniform(0, 1)}}).grid_size
    assert "add under optimizer.lr:  points: 5" in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({}, "must hold at least one parameter"),
        ({"a": {}}, "a: must hold at least one parameter"),
        ({"a b": 1}, "a b: must be named with letters"),
        ({"1a": 1}, "1a: must be named with letters"),
        ({"": 1}, "must be named with letters"),
        ({1: 2}, "must have strings as names, got 1"),
        ({"model": {"lr": 1}, "model.lr": 2}, r"model.lr: has the same flat name \(model.lr\)"),
        ({"lr": {"min": 0.1, "max": 1.0}}, r"lr: must be a distribution or a group, got W&B's notation"),
        ({"lr": {"values": [1, 2]}}, "hpsearch.Categorical"),
        ({"act": object()}, "act.value: must be a bool, a number"),
        ([1], "must be a mapping of names to distributions, got a list of 1"),
    ],
)
def test_spaces_that_cannot_be_searched_are_refused(parameters, problem):
    with pytest.raises(SweepError, match=problem):
        Space.from_parameters(parameters)


@pytest.mark.parametrize(
    ("value", "kind", "advice"),
    [
        (np.logspace(-4, -1, 4), "ndarray", "np.logspace(-4, -1, 4).tolist()"),
        (np.array(3), "ndarray", ".tolist()"),
        (pd.Series([1, 2]), "Series", ".tolist()"),
        (torch.tensor([1, 2]), "Tensor", ".tolist()"),
        ({"a", "b"}, "set", "sorted(...)"),
        (frozenset({"a", "b"}), "frozenset", "sorted(...)"),
        ({"a": 1}.keys(), "dict_keys", "list(...)"),
        (range(3), "range", "list(...)"),
        ((number for number in (1, 2)), "generator", "list(...)"),
        (deque([1, 2]), "deque", "list(...)"),
    ],
)
def test_what_is_neither_a_list_nor_one_value_is_refused_with_what_to_write(value, kind, advice):
    with pytest.raises(SweepError) as caught:
        Space.from_parameters({"group": {"x": value}})
    assert str(caught.value).startswith(
        f"group.x: must be a distribution, a list of choices or a plain value, got a {kind}"
    )
    assert advice in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    ("value", "advice"), [({"a", "b"}, "sorted(...)"), (frozenset("ab"), "sorted(...)"), (count(), "list(...)")]
)
def test_a_choice_has_an_order_and_an_end(value, advice):
    with pytest.raises(
        SweepError, match=f"Categorical: values: must be a list, got a {type(value).__name__}"
    ) as caught:
        Categorical(value)
    assert advice in str(caught.value)


def test_a_numpy_number_is_one_value():
    (parameter,) = Space.from_parameters({"x": np.float64(0.5)}).parameters
    assert parameter.distribution == Constant(0.5)


def test_a_group_may_use_wandbs_words_for_its_parameters():
    space = Space.from_parameters({"clip": {"min": Uniform(0, 1), "max": Uniform(1, 2)}})
    assert space.names == ("clip.min", "clip.max")


def test_a_parameter_cannot_be_a_group_as_well():
    with pytest.raises(SweepError, match="a: can't be a parameter and a group at once"):
        Space((Declared(("a",), Constant(1)), Declared(("a", "b"), Constant(1))))


def test_json_gives_the_same_space_back():
    assert Space.from_json(json.loads(json.dumps(NESTED.to_json()))) == NESTED


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,3}", fullmatch=True)
TREES = st.recursive(
    st.sampled_from([Uniform(0, 1, points=2), IntUniform(1, 3), [1, "a"], 5, None, Categorical([[1], {"k": 2}])]),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(tree=st.dictionaries(NAMES, TREES, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_nesting_and_flattening_undo_each_other(tree, seed):
    space = Space.from_parameters(tree)
    flat = space.draw(seed, 0)
    assert space.flatten(space.nest(flat)) == flat
    assert space.check(flat) == flat
    assert space.check(space.grid_point(space.grid_size - 1)) == space.grid_point(space.grid_size - 1)


@settings(deadline=None, max_examples=40)
@given(tree=st.dictionaries(NAMES, TREES, min_size=1, max_size=4), seed=st.integers(0, 1000), keep=st.data())
def test_parameters_may_be_absent_from_what_is_nested_flattened_and_checked(tree, seed, keep):
    space = Space.from_parameters(tree)
    flat = {name: value for name, value in space.draw(seed, 0).items() if keep.draw(st.booleans())}
    assert space.flatten(space.nest(flat)) == flat
    constants = {p.name: p.distribution.value for p in space.parameters if isinstance(p.distribution, Constant)}
    checked = space.check(flat, partial=True)
    assert checked == constants | flat
    assert list(checked) == [name for name in space.names if name in checked]


def test_what_is_nested_is_the_trainables_own_and_what_is_no_parameter_stands_at_the_top():
    space = Space.from_parameters({"optimizer": {"lr": 0.1}, "layers": [[1, {"a": 2}], [2]]})
    flat = {"optimizer.lr": 0.1, "layers": [1, {"a": 2}], "data.v2": [1]}
    nested = space.nest(flat)
    assert nested == {"optimizer": {"lr": 0.1}, "layers": [1, {"a": 2}], "data.v2": [1]}
    nested["layers"][1]["a"] = 3
    nested["data.v2"].append(2)
    assert flat == {"optimizer.lr": 0.1, "layers": [1, {"a": 2}], "data.v2": [1]}
