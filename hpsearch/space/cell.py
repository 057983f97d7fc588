"""Cells: directed acyclic graphs of operations, and their canonical form, which is the same for isomorphic graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from hpsearch.config.checks import InvalidKey, integer, shown
from hpsearch.space.choices import Categorical
from hpsearch.space.parameter import Declared, Group, Structure
from hpsearch.space.structures import declare_operations
from hpsearch.trial import Value

_MOST_NODES = 20

Nested = dict[str, Value]

Node = tuple[tuple[int, str], ...]
"""The inputs of a node: for each, the number of an earlier node, and the label of the operation."""

_Code = tuple[Node, ...]


@dataclass(frozen=True)
class Cell(Structure):
    """A directed acyclic graph of operations.

    With `each="edge"`, every node has an edge to every later node, and every edge has an operation, as in NAS-Bench-201
    (Dong and Yang, ICLR 2020). Node 0 is the input, the last node the output. A trainable gets a mapping of edges to
    operations: `{"0-1": "skip", "0-2": "conv", "1-2": "none"}`. Two such cells are equal if their mappings are.

    With `each="node"`, each node has two earlier nodes as inputs and an operation for each input, as in NASNet (Zoph et
    al., CVPR 2018) and AmoebaNet (Real et al., AAAI 2019). The first nodes are the inputs of the cell. A trainable gets
    a mapping of nodes to their two inputs: `{"2": [{"from": 0, "operation": "conv"}, {"from": 1, ...}]}`. Two such
    cells are equal if they are isomorphic: renumbering nodes or swapping the two inputs of a node changes nothing. No
    operation is treated as the identity or as zero.

    Args:
        operations: A list of values, or a mapping of names to their parameters.
        nodes: Number of nodes. Includes input and output for `each="edge"`, excludes the inputs for `each="node"`.
        each: Whether edges or nodes have operations.
        inputs: Number of inputs of the cell. Only for `each="node"`.
    """

    kind: ClassVar[str] = "cell"
    names_own: ClassVar[bool] = True

    operations: Any
    nodes: int
    each: Literal["edge", "node"] = "edge"
    inputs: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", declare_operations(self.operations))
        if self.each not in ("edge", "node"):
            raise InvalidKey(("each",), f"must be edge or node, got {shown(self.each)}")
        on_edges = self.each == "edge"
        nodes = integer(self.nodes, ("nodes",))
        if not (2 if on_edges else 1) <= nodes <= _MOST_NODES:
            least = "2, the input and the output," if on_edges else "1"
            raise InvalidKey(("nodes",), f"must be between {least} and {_MOST_NODES}, got {nodes}")
        if on_edges and self.inputs is not None:
            raise InvalidKey(("inputs",), "must not be given where each is edge: node 0 is the input", "remove it")
        inputs = None if on_edges else integer(2 if self.inputs is None else self.inputs, ("inputs",))
        if inputs is not None and not 1 <= inputs <= _MOST_NODES:
            raise InvalidKey(("inputs",), f"must be between 1 and {_MOST_NODES}, got {inputs}")
        object.__setattr__(self, "inputs", inputs)

    @cached_property
    def _declared(self) -> tuple[Declared, ...]:
        return self._on_edges() if self.inputs is None else self._on_nodes(self.inputs)

    def _on_edges(self) -> tuple[Declared, ...]:
        (operation,) = self.operations
        edges = [f"{start}-{end}" for end in range(1, self.nodes) for start in range(end)]
        return tuple(Declared((edge,), operation.holds) for edge in edges)

    def _on_nodes(self, inputs: int) -> tuple[Declared, ...]:
        (operation,) = self.operations
        parameters = []
        for node in range(inputs, inputs + self.nodes):
            for side in ("0", "1"):
                parameters.append(Declared((str(node), side, "from"), Categorical(list(range(node)))))
                parameters.append(Declared((str(node), side, "operation"), operation.holds))
        return tuple(parameters)

    def groups(self, value: Value) -> Sequence[Group]:
        """Return the parameters of the cell, as one group."""
        return [((), self._declared)]

    def nest(self, value: Value, groups: Mapping[tuple[str, ...], Value]) -> Value:
        """Return a mapping of edges to operations, or of nodes to their two inputs."""
        inside = groups[()]
        if self.each == "edge":
            return inside
        return {node: [sides[side] for side in ("0", "1") if side in sides] for node, sides in inside.items()}

    def unnest(self, value: object) -> tuple[Value, Mapping[tuple[str, ...], object]]:
        """Undo `nest`."""
        if not isinstance(value, Mapping):
            raise InvalidKey((), f"must be a mapping of {self.each}s, got {shown(value)}")
        if self.each == "edge":
            return None, {(): value}
        return None, {
            (): {
                node: dict(zip(("0", "1"), sides, strict=True))
                if isinstance(sides, list) and len(sides) == 2
                else sides
                for node, sides in value.items()
            }
        }

    def canonical(self, nested: Nested) -> Value:
        """Return a value that is the same for all nested cells that are equal to this one, and for no others."""
        if self.inputs is None or len(nested) < self.nodes:
            return nested
        nodes: list[Node] = [
            tuple((side["from"], json.dumps(side["operation"], sort_keys=True)) for side in sides)
            for sides in nested.values()
        ]
        return canonical_code(self.inputs, nodes)

    def to_json(self) -> dict[str, Value]:
        """Return the cell as JSON."""
        inputs = {} if self.inputs is None else {"inputs": self.inputs}
        return {"cell": self.operations[0].to_json(), "nodes": self.nodes, "each": self.each, **inputs}


def canonical_code(inputs: int, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes of a directed acyclic graph in an order, and renumbered, so that isomorphic graphs are equal.

    An isomorphism fixes the inputs of the graph and all labels. The inputs of a node are unordered.

    The nodes are coloured by their inputs and consumers until the colouring is stable (colour refinement). If nodes
    share a colour, each is tried as the first, except twins, which can be swapped. The order with the smallest code
    wins. This is individualization-refinement: McKay and Piperno, "Practical Graph Isomorphism, II", Journal of
    Symbolic Computation 2014, section 2.

    Args:
        inputs: Number of nodes without inputs, numbered from 0.
        nodes: The other nodes, each after its inputs.
    """
    consumers: list[list[tuple[int, str]]] = [[] for _ in range(inputs + len(nodes))]
    for number, node in enumerate(nodes, inputs):
        for source, label in node:
            consumers[source].append((number, label))
    colours = _refined(inputs, nodes, consumers, [0] * len(nodes))
    return min(_code(inputs, nodes, order) for order in _orders(inputs, nodes, consumers, colours))


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
    """Yield the candidate orders: each node of the first shared colour is individualized once."""
    shared = next((colour for colour in sorted(set(colours)) if colours.count(colour) > 1), None)
    if shared is None:
        yield _after_inputs(inputs, nodes, colours)
        return
    tried: set[_Code] = set()
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
    """Return the nodes in topological order; among the nodes that could come next, the smallest colour is first."""
    remaining = sorted(range(len(nodes)), key=colours.__getitem__)
    computed = set(range(inputs))
    order = []
    while remaining:
        index = next(index for index in remaining if all(source in computed for source, _ in nodes[index]))
        remaining.remove(index)
        computed.add(inputs + index)
        order.append(inputs + index)
    return order


def _code(inputs: int, nodes: Sequence[Node], order: Sequence[int]) -> _Code:
    number = {**{node: node for node in range(inputs)}, **{old: new for new, old in enumerate(order, inputs)}}
    return tuple(tuple(sorted((number[source], label) for source, label in nodes[old - inputs])) for old in order)
