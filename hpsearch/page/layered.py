"""Layered drawings of directed acyclic graphs, after Sugiyama et al. (1981): all edges point down.

An edge over several layers has a lane in each of them. All edges of a source share their lanes. Edges bend between
layers and are vertical within layers, so that an edge touches only the boxes that it connects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpsearch.page.charts.picture import Point

_APART = 18.0
"""Space between neighbours in a layer, in pixels."""
_GAPS = 30.0, 64.0
"""Smallest and largest space between two layers, in pixels. It is larger if edges lead far to a side."""
_STRAIGHT = 6.0
"""Weight of a bend within a lane, relative to a bend at a box."""
_ROUNDS = 24
_BEND = 12
"""Number of line segments of a bend."""


@dataclass(frozen=True)
class Layout:
    """The positions of boxes and edges, in pixels from the top left corner."""

    width: float
    height: float
    positions: Sequence[Point]
    """Centres of the boxes."""
    routes: Sequence[Sequence[Point]]
    """Points of each edge, from the lower border of its source to the upper border of its target."""


def layered(boxes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Compute a graph's layout.

    Args:
        boxes: (width, height) of each box; at least one box. In a layer, earlier boxes tend to be further left.
        edges: (source, target) pairs of indices into `boxes`. Each source comes before its targets.
    """
    drawing = _Drawing(boxes, edges)
    drawing.order()
    drawing.spread()
    drawing.straighten()
    return drawing.layout()


class _Drawing:
    """The items of a graph in layers: first boxes, then pieces of lanes."""

    def __init__(self, boxes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> None:
        self._boxes, self._edges = boxes, edges
        self._layer = _layers(len(boxes), edges)
        self._widths = [width for width, _ in boxes]
        self._lanes: dict[tuple[int, int], int] = {}
        self._links: set[tuple[int, int]] = set()
        for first, last in edges:
            self._links.update(itertools.pairwise(self._path(first, last)))
        self._above: list[list[int]] = [[] for _ in self._widths]
        self._below: list[list[int]] = [[] for _ in self._widths]
        for first, last in sorted(self._links):
            self._above[last].append(first)
            self._below[first].append(last)
        self._rows: list[list[int]] = [[] for _ in range(max(self._layer) + 1)]
        for node, layer in enumerate(self._layer):
            self._rows[layer].append(node)
        self._x = [0.0] * len(self._widths)

    def _path(self, first: int, last: int) -> list[int]:
        """Return the items on an edge, including both ends. Create the lane if there is none yet."""
        path = [first]
        for layer in range(self._layer[first] + 1, self._layer[last]):
            if (first, layer) not in self._lanes:
                self._lanes[first, layer] = len(self._widths)
                self._widths.append(0.0)
                self._layer.append(layer)
            path.append(self._lanes[first, layer])
        return [*path, last]

    def order(self) -> None:
        """Order each layer by the mean positions of its neighbours, in passes up and down.

        The order with the fewest crossings is kept.
        """
        best, fewest = [list(row) for row in self._rows], self._crossings()
        for turn in range(_ROUNDS):
            down = turn % 2 == 0
            for row in self._rows if down else reversed(self._rows):
                position = {node: number for other in self._rows for number, node in enumerate(other)}
                near = self._above if down else self._below
                middle = {
                    node: sum(position[other] for other in near[node]) / len(near[node])
                    if near[node]
                    else position[node]
                    for node in row
                }
                row.sort(key=lambda node: middle[node])
            if (crossings := self._crossings()) < fewest:
                best, fewest = [list(row) for row in self._rows], crossings
        self._rows = best

    def _crossings(self) -> int:
        position = {node: number for row in self._rows for number, node in enumerate(row)}
        total = 0
        for row in self._rows[:-1]:
            ends = [(position[node], position[other]) for node in row for other in self._below[node]]
            total += sum((a - c) * (b - d) < 0 for (a, b), (c, d) in itertools.combinations(ends, 2))
        return total

    def spread(self) -> None:
        """Move items toward their neighbours in other layers, as far as other items of the same layer allow."""
        for row in self._rows:
            self._put(row, [(0.0, 1.0)] * len(row))
        for turn in range(2 * _ROUNDS):
            near = [self._above, self._below] if turn >= 2 * _ROUNDS - 2 else [(self._above, self._below)[turn % 2]]
            for row in self._rows if turn % 2 == 0 else reversed(self._rows):
                self._put(
                    row,
                    [self._desired_position(node, [other for side in near for other in side[node]]) for node in row],
                )

    def _desired_position(self, node: int, near: Sequence[int]) -> tuple[float, float]:
        """Return the weighted mean position of the neighbours, and its weight."""
        weights = [_STRAIGHT if not self._widths[node] and not self._widths[other] else 1.0 for other in near]
        if not weights:
            return self._x[node], 0.1
        middle = sum(weight * self._x[other] for weight, other in zip(weights, near, strict=True)) / sum(weights)
        return middle, sum(weights)

    def _put(self, row: Sequence[int], desired: Sequence[tuple[float, float]]) -> None:
        """Move a layer's items as close to the desired positions as their order allows (pool adjacent violators)."""
        offsets = [0.0]
        for node, other in itertools.pairwise(row):
            offsets.append(offsets[-1] + (self._widths[node] + self._widths[other]) / 2 + _APART)
        pools: list[tuple[float, float, int]] = []
        for (wish, weight), offset in zip(desired, offsets, strict=True):
            pools.append((wish - offset, weight, 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (last, more, many), (first, less, few) = pools.pop(), pools.pop()
                pools.append(((first * less + last * more) / (less + more), less + more, few + many))
        moved = [wish for wish, _, many in pools for _ in range(many)]
        for node, wish, offset in zip(row, moved, offsets, strict=True):
            self._x[node] = wish + offset

    def straighten(self) -> None:
        """Make lanes vertical where there is space."""
        for first in dict.fromkeys(first for first, _ in self._lanes):
            run: list[int] = []
            low, high = -math.inf, math.inf
            for (_, layer), node in sorted(item for item in self._lanes.items() if item[0][0] == first):
                least, most = self._room(node, self._rows[layer])
                if max(low, least) > min(high, most):
                    self._align(run, low, high)
                    run, low, high = [], -math.inf, math.inf
                run.append(node)
                low, high = max(low, least), min(high, most)
            self._align(run, low, high)

    def _room(self, node: int, row: Sequence[int]) -> tuple[float, float]:
        """Return the range in which a piece of a lane may move."""
        index = row.index(node)
        low, high = -math.inf, math.inf
        if index:
            low = self._x[row[index - 1]] + self._widths[row[index - 1]] / 2 + _APART
        if index + 1 < len(row):
            high = self._x[row[index + 1]] - self._widths[row[index + 1]] / 2 - _APART
        return low, max(low, high)  # without rounding errors, low <= high

    def _align(self, run: Sequence[int], low: float, high: float) -> None:
        middle = sum(self._x[node] for node in run) / len(run)
        for node in run:
            self._x[node] = min(max(middle, low), high)

    def layout(self) -> Layout:
        """Return the layout, with the heights of layers and gaps."""
        left_edge = min(x - width / 2 for x, width in zip(self._x, self._widths, strict=True))
        right = max(x + width / 2 for x, width in zip(self._x, self._widths, strict=True))
        bands, y = [], 0.0
        for number, row in enumerate(self._rows):
            if number:
                far = max((abs(self._x[a] - self._x[b]) for b in row for a in self._above[b]), default=0.0)
                y += min(max(_GAPS[0], far / 5), _GAPS[1])
            high = max((self._boxes[node][1] for node in row if node < len(self._boxes)), default=0.0)
            bands.append((y, y + high))
            y += high
        self._x = [x - left_edge for x in self._x]
        middles = [(x, sum(bands[layer]) / 2) for x, layer in zip(self._x, self._layer, strict=True)]
        routes = [self._route(self._path(first, last), middles, bands) for first, last in self._edges]
        return Layout(right - left_edge, y, middles[: len(self._boxes)], routes)

    def _route(self, path: Sequence[int], middles: Sequence[Point], bands: Sequence[Point]) -> list[Point]:
        first, last = path[0], path[-1]
        points = [(middles[first][0], middles[first][1] + self._boxes[first][1] / 2)]
        for node, other in itertools.pairwise(path):
            points += _bend(
                (middles[node][0], bands[self._layer[node]][1]), (middles[other][0], bands[self._layer[other]][0])
            )
        return [*points, (middles[last][0], middles[last][1] - self._boxes[last][1] / 2)]


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each box: below its sources, and for inner boxes as close to their targets as possible."""
    layer = [0] * count
    for last in range(count):
        layer[last] = max((layer[first] + 1 for first, end in edges if end == last), default=0)
    reached = {last for _, last in edges}
    for first in reversed(range(count)):
        if first in reached:
            layer[first] = min((layer[last] - 1 for begin, last in edges if begin == first), default=layer[first])
    return layer


def _bend(start: Point, end: Point) -> list[Point]:
    """Return an S curve with vertical ends."""
    (x0, y0), (x1, y1) = start, end
    if math.isclose(x0, x1, abs_tol=0.05):
        return [start, end]
    shares = [step / _BEND for step in range(_BEND + 1)]
    # A cubic Bézier curve with its control points at half the height.
    return [
        (x0 + (x1 - x0) * share**2 * (3 - 2 * share), y0 + (y1 - y0) * (1.5 * share * (1 - share) + share**3))
        for share in shares
    ]
