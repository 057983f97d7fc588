"""The one order of a graph's nodes that all graphs equal to it have, up to what can't be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["Node", "canonical_order"]

Node = tuple[tuple[int, str], ...]
"""A node's inputs: each an earlier node, and the label of what is done to it."""

_Code = tuple[tuple[tuple[int, str], ...], ...]


def canonical_order(inputs: int, nodes: Sequence[Node]) -> list[int]:
    """Order the nodes of a directed acyclic graph so that isomorphic graphs become the same.

    An isomorphism keeps the inputs, each by itself, and all labels; the inputs of a node have no order. The nodes are
    coloured by their inputs and by who takes them, until colours say no more (colour refinement); of nodes that still
    share a colour each is tried as the first, but for twins, which a swap doesn't tell apart. The order whose graph,
    written down, is the least is taken (individualization and refinement: McKay and Piperno, "Practical Graph
    Isomorphism, II", Journal of Symbolic Computation 2014, section 2).

    Args:
        inputs: Nodes without inputs, numbered from 0.
        nodes: Those behind them, each after its inputs.

    Returns:
        The numbers of `nodes`, from `inputs` on, in an order in which each stands behind its inputs.
    """
    best: tuple[_Code, list[int]] | None = None
    takers: list[list[tuple[int, str]]] = [[] for _ in range(inputs + len(nodes))]
    for number, node in enumerate(nodes, inputs):
        for source, label in node:
            takers[source].append((number, label))
    for order in _orders(inputs, nodes, takers, _refined(inputs, nodes, takers, [0] * len(nodes))):
        code = _written(inputs, nodes, order)
        if best is None or code < best[0]:
            best = code, order
    assert best is not None
    return best[1]


def _refined(
    inputs: int, nodes: Sequence[Node], takers: Sequence[Sequence[tuple[int, str]]], colours: list[int]
) -> list[int]:
    """Tell nodes apart by the colours of their inputs and of those that take them, as long as that tells more."""
    count = len(set(colours))
    while True:
        of = [*range(inputs), *(inputs + colour for colour in colours)]
        seen = [
            (
                colours[place],
                tuple(sorted((of[source], label) for source, label in node)),
                tuple(sorted((of[taker], label) for taker, label in takers[inputs + place])),
            )
            for place, node in enumerate(nodes)
        ]
        known = {key: new for new, key in enumerate(sorted(set(seen)))}
        colours = [known[key] for key in seen]
        if len(known) == count:
            return colours
        count = len(known)


def _orders(
    inputs: int, nodes: Sequence[Node], takers: Sequence[Sequence[tuple[int, str]]], colours: list[int]
) -> Iterator[list[int]]:
    """Give the orders that remain, where each of the nodes that share a colour is told apart in turn."""
    shared = next((colour for colour in sorted(set(colours)) if colours.count(colour) > 1), None)
    if shared is None:
        yield _behind_inputs(inputs, nodes, colours)
        return
    tried: set[tuple[tuple[tuple[int, str], ...], ...]] = set()
    for place, node in enumerate(nodes):
        if colours[place] != shared:
            continue
        twins = tuple(sorted(node)), tuple(sorted(takers[inputs + place]))
        if twins in tried:
            continue
        tried.add(twins)
        told = [2 * colour + (colour == shared) for colour in colours]
        told[place] = 2 * shared
        yield from _orders(inputs, nodes, takers, _refined(inputs, nodes, takers, told))


def _behind_inputs(inputs: int, nodes: Sequence[Node], colours: list[int]) -> list[int]:
    """Order nodes by colour, each behind its inputs: of those whose inputs are there the one of the least colour."""
    left = sorted(range(len(nodes)), key=colours.__getitem__)
    there = set(range(inputs))
    order = []
    while left:
        place = next(one for one in left if all(source in there for source, _ in nodes[one]))
        left.remove(place)
        there.add(inputs + place)
        order.append(inputs + place)
    return order


def _written(inputs: int, nodes: Sequence[Node], order: Sequence[int]) -> _Code:
    number = {**{node: node for node in range(inputs)}, **{old: new for new, old in enumerate(order, inputs)}}
    return tuple(tuple(sorted((number[source], label) for source, label in nodes[old - inputs])) for old in order)
