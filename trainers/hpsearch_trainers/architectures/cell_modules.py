"""Modules of cells, and of networks that are stacks of them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn


class EdgeCell(nn.Module):
    """Operations on edges, as in NAS-Bench-201 (Dong and Yang, ICLR 2020): a node is the sum of its incoming edges.

    Args:
        edges: Names such as "0-2" to the operations; node 0 is the input, the last one the output.
    """

    def __init__(self, edges: dict[str, nn.Module]) -> None:
        super().__init__()
        self.operations = nn.ModuleDict(edges)
        pairs = sorted((int(end), int(start)) for start, end in (edge.split("-") for edge in edges))
        self.incoming = [
            [(start, f"{start}-{end}") for end, start in pairs if end == node] for node in range(1, 1 + pairs[-1][0])
        ]

    def forward(self, values: Tensor) -> Tensor:
        """Return the last node."""
        nodes = [values]
        for incoming in self.incoming:
            nodes.append(functools.reduce(torch.add, (self.operations[edge](nodes[start]) for start, edge in incoming)))
        return nodes[-1]


class NodeCell(nn.Module):
    """Operations on nodes, as in NASNet (Zoph et al., CVPR 2018): a node is the sum of its operations.

    Args:
        nodes: Numbers of nodes to the (source node, operation) pairs of each; nodes below the first are inputs.
        join: How the nodes without a successor become the output: "concat" concatenates them, "mean" averages them.
        axis: Dimension on which they are concatenated, counted with the batch.
    """

    def __init__(self, nodes: dict[str, list[tuple[int, nn.Module]]], join: str = "mean", axis: int = 1) -> None:
        super().__init__()
        numbers = sorted(map(int, nodes))
        self.inputs = numbers[0]
        self.sources = [[start for start, _ in nodes[str(number)]] for number in numbers]
        self.operations = nn.ModuleDict(
            {str(number): nn.ModuleList(operation for _, operation in nodes[str(number)]) for number in numbers}
        )
        used = {start for sources in self.sources for start in sources}
        self.loose = [number for number in numbers if number not in used]
        self.join, self.axis = join, axis

    def forward(self, *values: Tensor) -> Tensor:
        """Return the joined nodes without a successor. A single value is used for all inputs."""
        nodes = list(values) if len(values) > 1 else [*values] * self.inputs
        for sources, operations in zip(self.sources, self.operations.values(), strict=True):
            assert isinstance(operations, nn.ModuleList)
            pairs = zip(sources, operations, strict=True)
            nodes.append(functools.reduce(torch.add, (operation(nodes[start]) for start, operation in pairs)))
        loose = [nodes[number] for number in self.loose]
        if self.join == "concat":
            return torch.cat(loose, self.axis)
        return torch.stack(loose).mean(0)


class Step(nn.Module):
    """A cell of a stack, after a module per input that adapts its shape; or a reduction between two cells."""

    def __init__(self, inputs: list[nn.Module], cell: nn.Module) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(inputs)
        self.cell = cell

    def forward(self, *values: Tensor) -> Tensor:
        """Return the cell's output."""
        newest = values[-len(self.inputs) :]
        out: Tensor = self.cell(*(fit(value) for fit, value in zip(self.inputs, newest, strict=True)))
        return out


class CellStack(nn.Module):
    """Cells in sequence. The inputs of a cell are the outputs of the previous cells."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.memory = max(len(step.inputs) for step in steps)

    def forward(self, values: Tensor) -> Tensor:
        """Return the last output. The input replaces the outputs before the first cell."""
        outputs = [values] * self.memory
        for step in self.steps:
            outputs = [*outputs[1:], step(*outputs)]
        return outputs[-1]


class Network(nn.Module):
    """A stem, a body, and a head that ends in a linear layer."""

    def __init__(self, stem: nn.Module, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.body = body
        self.head = head

    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs, (rows, outputs)."""
        out: Tensor = self.head(self.body(self.stem(values)))
        return out
