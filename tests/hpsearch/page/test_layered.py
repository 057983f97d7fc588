"""Layered drawings: edges lead from border to border, and through no box."""

from __future__ import annotations

import itertools
import random

import pytest

from hpsearch.page.layered import Layout, layered

Size = tuple[float, float]


def checked(sizes: list[Size], edges: list[tuple[int, int]]) -> Layout:
    """Lay it out, and see that it can be read."""
    layout = layered(sizes, edges)
    boxes = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(layout.positions, sizes, strict=True)
    ]
    for left, top, right, bottom in boxes:
        assert -1e-6 <= left <= right <= layout.width + 1e-6
        assert -1e-6 <= top <= bottom <= layout.height + 1e-6
    for (l0, t0, r0, b0), (l1, t1, r1, b1) in itertools.combinations(boxes, 2):
        assert r0 + 10 <= l1 or r1 + 10 <= l0 or b0 + 10 <= t1 or b1 + 10 <= t0
    for (first, last), route in zip(edges, layout.routes, strict=True):
        assert route[0] == pytest.approx(((boxes[first][0] + boxes[first][2]) / 2, boxes[first][3]))
        assert route[-1] == pytest.approx(((boxes[last][0] + boxes[last][2]) / 2, boxes[last][1]))
        assert all(y0 <= y1 + 1e-6 for (_, y0), (_, y1) in itertools.pairwise(route))
        for (x0, y0), (x1, y1) in itertools.pairwise(route):
            for share in (0.0, 0.25, 0.5, 0.75, 1.0):
                x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
                inside = [
                    number
                    for number, (left, top, right, bottom) in enumerate(boxes)
                    if left - 3 < x < right + 3 and top + 1e-6 < y < bottom - 1e-6
                ]
                assert inside == []
    return layout


@pytest.mark.some_cases(20)
@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_graph_no_edge_runs_through_a_box_and_no_box_lies_on_another(seed):
    chance = random.Random(seed)
    count = chance.randint(1, 24)
    sizes = [(chance.uniform(20, 160), chance.uniform(20, 70)) for _ in range(count)]
    edges = [pair for pair in itertools.combinations(range(count), 2) if chance.random() < chance.choice([0.1, 0.5])]
    checked(sizes, edges)


def test_a_skip_goes_around_the_boxes_between_in_one_upright_line():
    layout = checked([(100, 30)] * 5, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)])
    skip = layout.routes[3]
    between = [x for x, y in skip if layout.positions[1][1] - 15 <= y <= layout.positions[2][1] + 15]
    assert max(between) - min(between) < 1e-6
    assert abs(between[0] - layout.positions[1][0]) > 50


def test_a_chain_is_upright():
    layout = checked([(100, 30), (60, 30), (140, 50)], [(0, 1), (1, 2)])
    assert [x for x, _ in layout.positions] == pytest.approx([70, 70, 70])
    assert [len({round(x, 6) for x, _ in route}) for route in layout.routes] == [1, 1]


def test_what_stands_between_two_is_near_to_what_it_leads_to():
    """So the operations that a node adds up stand side by side above it."""
    layout = checked([(60, 30)] * 6, [(0, 1), (1, 2), (2, 3), (3, 5), (0, 4), (4, 5)])
    assert layout.positions[4][1] == layout.positions[3][1]


def test_edges_of_one_source_share_their_lane():
    layout = checked([(60, 30)] * 7, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 3), (0, 5), (4, 5), (5, 6), (0, 6)])
    to_three, to_five, to_six = layout.routes[4], layout.routes[5], layout.routes[8]
    assert to_five[: len(to_three) // 2] == to_three[: len(to_three) // 2]
    assert to_six[: len(to_five) // 2] == to_five[: len(to_five) // 2]


def test_equal_graphs_are_drawn_equally():
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]
    assert layered([(50, 30)] * 4, edges) == layered([(50, 30)] * 4, edges)
