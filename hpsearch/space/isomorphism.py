"""The canonical order of a graph's nodes: the same for all isomorphic graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["Node", "canonical_order"]

Node = tuple[tuple[int, str], ...]
"""The inputs of a node: for each, the number of an earlier node, and the label of the operation."""

_Code = tuple[tuple[tuple[int, str], ...], ...]


def canonical_order(inputs: int, nodes: Sequence[Node]) -> list[int]:
    """Return an order of the nodes of a directed acyclic graph that makes isomorphic graphs equal.

    An isomorphism fixes the inputs of the graph and all labels. The inputs of a node are unordered.

    The nodes are coloured by their inputs and consumers until the colouring is stable (colour refinement). If nodes
    share a colour, each is tried as the first, except twins, which can be swapped. The order with the smallest code
    wins. This is individualization-refinement: McKay and Piperno, "Practical Graph Isomorphism, II", Journal of
    Symbolic Computation 2014, section 2.

    Args:
        inputs: Number of nodes without inputs, numbered from 0.
        nodes: The other nodes, each after its inputs.

    Returns:
        The numbers of `nodes`, from `inputs` on, each after its inputs.
    """
    best: tuple[_Code, list[int]] | None = None
    consumers: list[list[tuple[int, str]]] = [[] for _ in range(inputs + len(nodes))]
    for number, node in enumerate(nodes, inputs):
        for source, label in node:
            consumers[source].append((number, label))
    for order in _orders(inputs, nodes, consumers, _refined(inputs, nodes, consumers, [0] * len(nodes))):
        code = _code(inputs, nodes, order)
        if best is None or code < best[0]:
            best = code, order
    assert best is not None
    return best[1]


def _refined(
    inputs: int, nodes: Sequence[Node], consumers: Sequence[Sequence[tuple[int, str]]], colours: list[int]
) -> list[int]:
    """Refine the colours by those of inputs and consumers until the number of colours no longer grows."""
    count = len(set(colours))
    while True:
        colour_of = [*range(inputs), *(inputs + colour for colour in colours)]
        keys = [
            (
                colours[index],
                tuple(sorted((colour_of[source], label) for source, label in node)),
                tuple(sorted((colour_of[consumer], label) for consumer, label in consumers[inputs + index])),
            )
            for index, node in enumerate(nodes)
        ]
        new_colours = {key: new for new, key in enumerate(sorted(set(keys)))}
        colours = [new_colours[key] for key in keys]
        if len(new_colours) == count:
            return colours
        count = len(new_colours)


def _orders(
    inputs: int, nodes: Sequence[Node], consumers: Sequence[Sequence[tuple[int, str]]], colours: list[int]
) -> Iterator[list[int]]:
    """Yield the candidate orders: each node of the first shared colour is individualized in turn."""
    shared = next((colour for colour in sorted(set(colours)) if colours.count(colour) > 1), None)
    if shared is None:
        yield _after_inputs(inputs, nodes, colours)
        return
    tried: set[tuple[tuple[tuple[int, str], ...], ...]] = set()
    for index, node in enumerate(nodes):
        if colours[index] != shared:
            continue
        twins = tuple(sorted(node)), tuple(sorted(consumers[inputs + index]))
        if twins in tried:
            continue
        tried.add(twins)
        individualized = [2 * colour + (colour == shared) for colour in colours]
        individualized[index] = 2 * shared
        yield from _orders(inputs, nodes, consumers, _refined(inputs, nodes, consumers, individualized))


def _after_inputs(inputs: int, nodes: Sequence[Node], colours: list[int]) -> list[int]:
    """Return the nodes in topological order; of those that are ready, the one with the smallest colour first."""
    remaining = sorted(range(len(nodes)), key=colours.__getitem__)
    done = set(range(inputs))
    order = []
    while remaining:
        index = next(index for index in remaining if all(source in done for source, _ in nodes[index]))
        remaining.remove(index)
        done.add(inputs + index)
        order.append(inputs + index)
    return order


def _code(inputs: int, nodes: Sequence[Node], order: Sequence[int]) -> _Code:
    number = {**{node: node for node in range(inputs)}, **{old: new for new, old in enumerate(order, inputs)}}
    return tuple(tuple(sorted((number[source], label) for source, label in nodes[old - inputs])) for old in order)
