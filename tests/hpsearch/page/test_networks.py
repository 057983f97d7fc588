"""The best trials' structures as graphs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.page.charts.picture import Area, Line, Words, svg
from hpsearch.page.networks import (
    Drawn,
    Graph,
    Look,
    graph_of,
    looks_of,
    network_picture,
    networks,
    operations_of,
    structures_of,
)
from hpsearch.space import Space


def told(graph: Graph | None) -> list[str]:
    """Write a graph as lines `from > to`."""
    assert graph is not None
    names = [" ".join((node.name, *node.settings)) for node in graph.nodes]
    assert all(first < last for first, last in graph.edges)
    return [f"{names[first]} > {names[last]}" for first, last in graph.edges]


def test_a_chain_leads_from_the_input_to_the_output():
    layers = [{"conv": {"channels": 16, "kernel": 3}}, "relu", {"pool": {}}, 64, {"width": 8, "act": "gelu"}]
    assert told(graph_of(layers)) == [
        "input > conv channels 16 kernel 3",
        "conv channels 16 kernel 3 > relu",
        "relu > pool",
        "pool > 64",
        "64 > width 8 act gelu",
        "width 8 act gelu > output",
    ]


def test_a_residual_is_the_sum_of_its_body_and_of_what_comes():
    inner = {"residual": {"body": ["relu"]}}
    assert told(graph_of([{"residual": {"body": ["conv", inner], "p": 0.1}}])) == [
        "input > conv",
        "conv > relu",
        "conv > residual sum",
        "relu > residual sum",
        "input > residual sum p 0.1",
        "residual sum > residual sum p 0.1",
        "residual sum p 0.1 > output",
    ]
    assert told(graph_of([{"residual": {"body": []}}])) == ["input > residual sum", "residual sum > output"]


def test_operations_of_a_cells_edges_stand_between_its_nodes():
    assert told(graph_of({"0-1": "conv", "0-2": "none", "1-2": {"pool": {"kernel": 3}}})) == [
        "0: input > conv",
        "conv > 1",
        "0: input > none",
        "1 > pool kernel 3",
        "none > 2: output",
        "pool kernel 3 > 2: output",
    ]


def test_a_cell_with_ten_nodes_ends_at_the_last_one():
    cell = {f"{first}-{last}": "skip" for last in range(1, 12) for first in range(last)}
    graph = graph_of(cell)
    assert graph is not None
    assert graph.nodes[-1].name == "11: output"
    assert len(graph.edges) == 2 * len(cell)


def test_nodes_of_a_cell_take_two_earlier_ones_and_an_input_that_none_takes_is_shown():
    cell = {
        "2": [{"from": 0, "operation": "sep"}, {"from": 0, "operation": "sep"}],
        "3": [{"from": 2, "operation": "avg"}, {"from": 0, "operation": "skip"}],
    }
    graph = graph_of(cell)
    taken = ["0: input > sep", "0: input > sep", "sep > 2", "sep > 2", "2 > avg", "0: input > skip"]
    assert told(graph) == [*taken, "avg > 3", "skip > 3"]
    assert graph is not None
    assert [node.name for node in graph.nodes if node.is_place] == ["0: input", "1: input", "2", "3"]


def test_cells_stand_in_chains_and_chains_in_cells():
    nodes = {"1": [{"from": 0, "operation": ["a", "b"]}], "2": [{"from": 0, "operation": "c"}]}
    assert told(graph_of([{"0-1": "conv"}, nodes])) == [
        "input > conv",
        "conv > 1",
        "1 > a",
        "a > b",
        "b > 1",
        "1 > c",
        "c > 2",
        "1 > of the cell",
        "2 > of the cell",
        "of the cell > output",
    ]


def test_of_a_long_chain_it_is_said_how_many_layers_are_left_out():
    lines = told(graph_of(["conv"] * 33))
    assert lines[-2:] == ["conv > and 3 more", "and 3 more > output"]


@pytest.mark.parametrize(
    "value", [[], {}, {"layers": []}, {"0-1": "a", "b": 1}, {"1-0": "a"}, {"2": [{"from": 3, "operation": "a"}]}, 3]
)
def test_what_is_no_network_is_not_drawn(value):
    assert graph_of(value) is None


LAYER = {"conv": {"kernel": [3, 5]}, "pool": {}}
SPACE = {
    "kind": hpsearch.Choice({"cnn": {"layers": hpsearch.Chain(LAYER, max=2)}, "mlp": {"width": [8, 16]}}),
    "cell": hpsearch.Cell(["none", "conv", "skip"], nodes=3),
    "widths": hpsearch.Repeat(hpsearch.Ordinal([16, 32]), max=3),
    "block": hpsearch.Chain({"residual": {"body": hpsearch.Chain(["sep", "act"], max=2)}}, max=2),
    "act": ["relu", "gelu"],
}


def test_structures_are_found_in_choices_and_groups_and_nothing_else_is_drawn():
    space = Space.from_parameters(SPACE)
    holds = {one.path[0]: one.holds for one in space.declared}
    chain: list[Any] = [{"pool": {}}]
    assert list(structures_of("kind", holds["kind"], {"cnn": {"layers": chain}})) == [("kind.cnn.layers", chain)]
    assert list(structures_of("kind", holds["kind"], {"mlp": {"width": 8}})) == []
    assert list(structures_of("act", holds["act"], "relu")) == []
    assert [name for one in holds.values() for name in dict.fromkeys(operations_of(one))] == [
        *("conv", "pool", "none", "conv", "skip", "residual", "sep", "act"),
    ]


def test_each_operation_has_a_look_of_its_own_as_far_as_they_go():
    names = [f"operation {number}" for number in range(15)]
    looks = looks_of(["none", *names, *names])
    assert len(set(looks.values())) == 12
    assert "none" not in looks
    assert looks_of(names[:3]) == {name: looks[name] for name in names[:3]}


def searched(directory: Path, parameters: dict[str, Any], **changes: Any) -> hpsearch.Study:
    def train(trial: hpsearch.RunningTrial) -> None:
        trial.report({"loss": float(trial.number % 7)})

    given: dict[str, Any] = {"metric": "loss", "run_cap": 12, "max_iter": 1, "seed": 2, **changes}
    options: dict[str, Any] = {"backend": "inline", "directory": directory, "observers": [], "progress": False}
    return hpsearch.search(train, parameters=parameters, method="random", **given, **options)


def test_one_operation_has_one_colour_in_all_pictures_and_each_has_one_key(tmp_path):
    sections = networks(searched(tmp_path / "a", SPACE))
    names = ("kind.cnn.layers", "cell", "widths", "block")
    assert {section.title for section in sections} == {f"Best networks: {name}" for name in names}
    inks: dict[str, set[str]] = {}
    for section in sections:
        assert section.picture is not None
        svg(section.picture)
        shapes = section.picture.shapes
        for card, text in itertools.pairwise([one for one in shapes if isinstance(one, Area | Words)]):
            if isinstance(card, Area) and isinstance(text, Words):
                inks.setdefault(text.text, set()).add(card.ink)
        texts = [one.text for one in shapes if isinstance(one, Words)]
        key = texts[: next(place for place, text in enumerate(texts) if text.startswith("Trial "))]
        assert len(key) == len(set(key))
    operations = [inks[name] for name in ("conv", "skip", "residual", "sep")]
    assert all(len(one) == 1 for one in operations)
    assert len(set.union(*operations)) == len(operations)


def test_trials_that_differ_elsewhere_alone_are_drawn_once(tmp_path):
    parameters = {"layers": hpsearch.Chain(["a"], min=1, max=2), "optimizer": hpsearch.Choice({"sgd": {}, "adam": {}})}
    (section,) = networks(searched(tmp_path / "b", parameters))
    assert section.table is not None
    drawn = [row[2] for row in section.table.rows]
    assert sorted(drawn) == ["[a a]", "[a]"]


def test_the_best_come_first_whatever_the_goal_is(tmp_path):
    parameters = {"layers": hpsearch.Chain(["a", "b", "c"], min=3, max=3)}
    study = searched(tmp_path / "c", parameters, metric=hpsearch.Metric("loss", "maximize"))
    (section,) = networks(study)
    assert section.table is not None
    assert section.table.rows[0][:2] == (str(study.best_trial.number), "loss 6")
    assert [row[1] for row in section.table.rows] == sorted((row[1] for row in section.table.rows), reverse=True)


def test_without_structures_and_without_values_nothing_is_drawn(tmp_path):
    assert networks(searched(tmp_path / "d", {"x": hpsearch.Uniform(0, 1)})) == []


def test_a_group_of_lists_is_no_cell(tmp_path):
    layers = hpsearch.Chain(["a", "b"], max=2)
    parameters = {"kind": ["net"], "net": hpsearch.When("kind == 'net'", {"layers": layers})}
    (section,) = networks(searched(tmp_path / "e", parameters))
    assert section.title == "Best networks: net.layers"


def test_an_operation_that_gives_zeros_is_dashed_and_has_no_colour():
    graph = graph_of({"0-1": "none"})
    assert graph is not None
    picture = network_picture([Drawn("Trial 0", ["loss 1"], graph)], {}, "t", "t")
    lines = [one for one in picture.shapes if isinstance(one, Line)]
    assert len([one for one in lines if one.dashed]) == 4  # the key, its box, and the edges to it and from it
    assert not [one for one in picture.shapes if isinstance(one, Area)]


def test_graphs_stand_beside_each_other_while_there_is_room_and_the_picture_holds_all():
    narrow, wide = graph_of(["a"] * 3), graph_of({f"{a}-{b}": "operation" for b in range(1, 10) for a in range(b)})
    assert narrow is not None
    assert wide is not None
    picture = network_picture([Drawn(f"Trial {n}", [], narrow) for n in range(3)], {"a": Look("s0")}, "t", "t")
    assert len({one.y for one in picture.shapes if isinstance(one, Words) and one.text.startswith("Trial")}) == 1
    middles = [one.x for one in picture.shapes if isinstance(one, Words) and one.text == "output"]
    assert max(middles) < picture.width < max(middles) + 80  # a small one isn't made wide
    picture = network_picture([Drawn("A", [], narrow), Drawn("B", ["長い" * 12], wide)], {}, "t", "t")
    points = [point for one in picture.shapes if isinstance(one, Line) for point in one.points]
    assert max(x for x, _ in points) <= picture.width - 10
    assert max(y for _, y in points) <= picture.height - 10
    assert picture.width > 760
    key = network_picture([Drawn("A", [], narrow)], {"a": Look("s0")}, "t", "t")
    assert key.width < 200


def test_long_texts_are_shortened_and_many_settings_left_out():
    settings = {f"name{number}": "x" * 40 for number in range(9)}
    graph = graph_of([{"o" * 60: settings}])
    assert graph is not None
    picture = network_picture([Drawn("Trial 0", [], graph)], {}, "t", "t")
    texts = [one.text for one in picture.shapes if isinstance(one, Words)]
    assert max(map(len, texts)) <= 26
    assert "…" in texts
