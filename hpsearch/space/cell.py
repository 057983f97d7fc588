"""Cells: directed acyclic graphs of operations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hpsearch.config.checks import InvalidKey, integer, shown
from hpsearch.space.choices import Categorical
from hpsearch.space.isomorphism import Node, canonical_order
from hpsearch.space.parameter import Declared, Structure
from hpsearch.space.structures import declare_operations
from hpsearch.trial import Value

__all__ = ["Cell"]

_MOST_NODES = 20

Nested = dict[str, Value]


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
        each: What has operations.
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
        object.__setattr__(self, "_declared", self._on_edges() if on_edges else self._on_nodes(inputs or 0))

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

    def groups(self, value: Value) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Return the parameters of the cell, as one group."""
        return [((), self._declared)]  # type: ignore[attr-defined]

    def every_group(self) -> Sequence[tuple[tuple[str, ...], Sequence[Declared]]]:
        """Return the parameters of the cell, as one group."""
        return self.groups(None)

    def enter(self, parts: tuple[str, ...]) -> tuple[int, tuple[str, ...], Sequence[Declared], int] | None:
        """Follow the same parts among the parameters of the cell."""
        return 0, (), self._declared, 0  # type: ignore[attr-defined]

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

    def canonical(self, nested: Nested) -> Nested:
        """Return the canonical form of a nested cell: the same for all cells that are equal to it."""
        if self.each == "edge" or len(nested) < self.nodes:
            return nested
        assert self.inputs is not None
        nodes: list[Node] = [
            tuple((side["from"], json.dumps(side["operation"], sort_keys=True)) for side in sides)
            for sides in nested.values()
        ]
        order = canonical_order(self.inputs, nodes)
        number = {
            **{node: node for node in range(self.inputs)},
            **{old: new for new, old in enumerate(order, self.inputs)},
        }
        out: Nested = {}
        for new, old in enumerate(order, self.inputs):
            sides = [{**side, "from": number[side["from"]]} for side in nested[str(old)]]
            out[str(new)] = sorted(
                sides, key=lambda side: (side["from"], json.dumps(side["operation"], sort_keys=True))
            )
        return out

    def to_json(self) -> dict[str, Value]:
        """Return the cell as JSON."""
        own = {} if self.inputs is None else {"inputs": self.inputs}
        return {"cell": self.operations[0].to_json(), "nodes": self.nodes, "each": self.each, **own}
