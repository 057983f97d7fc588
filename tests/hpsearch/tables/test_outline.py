"""Structures as one text each."""

from __future__ import annotations

from hpsearch.space import Cell, Chain, Choice, Repeat, Space, Uniform, When
from hpsearch.tables.outline import outline, outlined
from hpsearch.trial import Params, TrialRow, TrialState

SPACE = Space.from_parameters(
    {
        "lr": 0.1,
        "group": {"x": [1, 2]},
        "optimizer": Choice({"sgd": {"momentum": Uniform(0, 1)}, "adam": {}}),
        "hidden": Repeat([16, 32], 0, 3),
        "layers": Chain({"conv": {"k": [3, 5]}, "pool": {}}, 1, 3),
        "edges": Cell(["skip", "none"], 3),
        "nodes": Cell(["max", "sep"], 1, "node"),
        "maybe": When("lr > 1", {"y": 3}),
    }
)


def test_each_structure_is_one_text():
    point = {
        "lr": 0.1,
        "group.x": 2,
        "optimizer": "sgd",
        "optimizer.sgd.momentum": 0.5,
        "hidden": 2,
        "hidden.0": 16,
        "hidden.1": 32,
        "layers": 2,
        "layers.0": "conv",
        "layers.0.conv.k": 3,
        "layers.1": "pool",
        "edges.0-1": "skip",
        "edges.0-2": "none",
        "edges.1-2": "skip",
        "nodes.2.0.from": 0,
        "nodes.2.0.operation": "max",
        "nodes.2.1.from": 1,
        "nodes.2.1.operation": "sep",
    }
    assert SPACE.check(point) == point
    assert outline(point, SPACE) == {
        "lr": 0.1,
        "group.x": 2,
        "optimizer": "sgd(momentum=0.5)",
        "hidden": "[16 32]",
        "layers": "[conv(k=3) pool]",
        "edges": "0-1=skip 0-2=none 1-2=skip",
        "nodes": "2=[max~0 sep~1]",
    }


def test_no_copies_and_no_parameters_are_said():
    assert outline({"hidden": 0, "optimizer": "adam"}, SPACE) == {"hidden": "[]", "optimizer": "adam"}


def test_rows_have_a_column_for_each_and_for_what_is_no_parameter():
    points: list[Params] = [{"lr": 0.1}, {"strange": 3}]
    rows = [
        TrialRow(number, TrialState.COMPLETE, 1, 0.5, params, "random", None, None, 0.0, "")
        for number, params in enumerate(points)
    ]
    written, names = outlined(rows, SPACE)
    assert names == ("lr", "group.x", "optimizer", "hidden", "layers", "edges", "nodes", "maybe", "strange")
    assert [row.params for row in written] == [{"lr": 0.1}, {"strange": 3}]


def test_a_constant_that_is_named_as_secrets_are_is_masked_and_what_is_searched_is_not():
    space = Space.from_parameters({"db": {"password": "hunter2"}, "pad_token": [0, 1]})
    assert outline({"db.password": "hunter2", "pad_token": 1}, space) == {"db.password": "***", "pad_token": 1}
