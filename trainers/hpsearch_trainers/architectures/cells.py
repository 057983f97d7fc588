"""Cells, stacks of them, and operations of published cells, under their published names.

The operations keep an image's shape if the stride is 1. A convolution is always ReLU, convolution and batch
normalization, in this order. NASNet: Zoph et al., CVPR 2018. NAS-Bench-201: Dong and Yang, ICLR 2020. DARTS: Liu et
al., ICLR 2019; its search has a batch normalization after each pool, which is left out here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.calls import Call, Planned
from hpsearch_trainers.architectures.cell_modules import CellStack, EdgeCell, NodeCell, Step
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.plan import check_parameters, named, operation_named
from hpsearch_trainers.architectures.registry import operation
from hpsearch_trainers.architectures.shapes import Shape, described, halved, image, one_of, positive_int

Plan = Callable[[Any, Shape, str], Planned]
"""Plans any value, for an input shape, at its path."""

_OF_A_CELL = re.compile(r"\d+(-\d+)?")
_EDGE = re.compile(r"(0|[1-9]\d*)-([1-9]\d*)")
_NODE = re.compile(r"[1-9]\d*")


def is_cell(value: object) -> bool:
    """Return whether a value is a cell: its keys are numbers such as "2", or pairs such as "0-1"."""
    return isinstance(value, Mapping) and any(_OF_A_CELL.fullmatch(str(key)) for key in value)


def plan_cell(
    cell: Mapping[Any, Any], shape: Shape, path: str, plan: Plan, *, join: str = "mean", reduces: bool = False
) -> Planned:
    """Plan a cell.

    Args:
        cell: Edges to operations, or nodes to their inputs.
        shape: The shape of all its inputs.
        path: Its location.
        plan: Plans the operations.
        join: How the nodes without a successor become the output, "mean" or "concat". A cell of edges has one output.
        reduces: Whether the operations on inputs have a stride of 2.
    """
    keys = {str(key): value for key, value in cell.items()}
    if all(_EDGE.fullmatch(key) for key in keys):
        return _edges(keys, shape, path, plan, reduces)
    if all(_NODE.fullmatch(key) for key in keys):
        return _nodes(keys, shape, path, plan, join, reduces)
    raise ArchitectureError(
        path, f"a cell must have edges such as '0-1' or nodes such as '2', and not both, got {', '.join(keys)}"
    )


def inputs_of(cell: Mapping[Any, Any]) -> int:
    """Return the number of inputs of a cell."""
    return min(int(str(key)) for key in cell) if all(_NODE.fullmatch(str(key)) for key in cell) else 1


def used_nodes(cell: Mapping[Any, Any]) -> set[int]:
    """Return the nodes with a successor in a planned cell."""
    if all(_EDGE.fullmatch(str(key)) for key in cell):
        return {int(str(edge).split("-")[0]) for edge in cell}
    return {int(side["from"]) for sides in cell.values() for side in sides}


def _edges(edges: Mapping[str, Any], shape: Shape, path: str, plan: Plan, reduces: bool) -> Planned:
    inside = halved(shape) if reduces else shape
    pairs = {edge: (int(edge.split("-")[0]), int(edge.split("-")[1])) for edge in edges}
    for edge, (start, end) in pairs.items():
        if start >= end:
            raise ArchitectureError(path, f"an edge must lead to a later node, got {edge}")
    last = max(end for _, end in pairs.values())
    for node in range(1, last + 1):
        if all(end != node for _, end in pairs.values()):
            raise ArchitectureError(path, f"an edge must lead to each node from 1 to {last}, got none to {node}")
    calls = {}
    for edge, value in edges.items():
        strided = reduces and pairs[edge][0] == 0
        calls[edge] = _inside(value, shape if strided else inside, inside, f"{path}.{edge}", plan, strided)
    return Planned(Call(EdgeCell, (calls,)), inside)


def _nodes(nodes: Mapping[str, Any], shape: Shape, path: str, plan: Plan, join: str, reduces: bool) -> Planned:
    inside = halved(shape) if reduces else shape
    numbers = sorted(map(int, nodes))
    inputs = numbers[0]
    if numbers != list(range(inputs, inputs + len(numbers))):
        raise ArchitectureError(path, f"nodes must be numbered without a gap, got {', '.join(map(str, numbers))}")
    calls = {}
    for number in numbers:
        sides = nodes[str(number)]
        if not isinstance(sides, list | tuple) or not sides:
            raise ArchitectureError(f"{path}.{number}", f"a node must be a list of its inputs, got {sides!r}")
        calls[str(number)] = [
            _side(side, number, inputs, shape, inside, f"{path}.{number}[{index}]", plan, reduces)
            for index, side in enumerate(sides)
        ]
    loose = len(numbers) - sum(start >= inputs for start in {start for sides in calls.values() for start, _ in sides})
    if join == "mean":
        return Planned(Call(NodeCell, (calls,)), inside)
    axis, wide = (2, (*inside[:-1], loose * inside[-1])) if len(inside) == 2 else (1, (loose * inside[0], *inside[1:]))
    return Planned(Call(NodeCell, (calls,), {"join": join, "axis": axis}), wide)


def _side(
    side: Any, number: int, inputs: int, shape: Shape, inside: Shape, path: str, plan: Plan, reduces: bool
) -> tuple[int, Call]:
    if not isinstance(side, Mapping) or set(side) != {"from", "operation"}:
        raise ArchitectureError(path, f"must be {{'from': a node, 'operation': ...}}, got {side!r}")
    start = side["from"]
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < number:
        raise ArchitectureError(f"{path}.from", f"must be a node from 0 to {number - 1}, got {start!r}")
    strided = reduces and start < inputs
    return start, _inside(side["operation"], shape if strided else inside, inside, path, plan, strided)


def _inside(value: Any, shape: Shape, expected: Shape, path: str, plan: Plan, strided: bool) -> Call:
    """Plan an operation of a cell. Its output must have the `expected` shape, that of its node's other operations."""
    if strided:
        value = _with_stride(value, path)
    planned = plan(value, shape, path)
    if planned.shape != expected:
        name = f".{named(value, path)[0]}" if isinstance(value, str) or _is_operation(value) else ""
        requirement = "halve the sides, to" if strided else "keep the shape in a cell,"
        raise ArchitectureError(path + name, f"must {requirement} {expected}, got {planned.shape}")
    return planned.call


def _is_operation(value: Any) -> bool:
    return isinstance(value, Mapping) and not is_cell(value)


def _with_stride(value: Any, path: str) -> dict[str, Any]:
    hint = "take one that has, or a reduction that isn't a cell"
    if not isinstance(value, str) and not _is_operation(value):
        raise ArchitectureError(path, f"must be a single operation at a reduction cell's input, got {value!r}")
    name, params = named(value, path)
    if name == "cells" or "stride" not in inspect.signature(operation_named(name, path)).parameters:
        raise ArchitectureError(
            f"{path}.{name}", f"must have a parameter 'stride' at a reduction cell's input, and has none: {hint}"
        )
    if "stride" in params:
        raise ArchitectureError(f"{path}.{name}", f"must not give 'stride' at a reduction cell's input, got {params}")
    return {name: {**params, "stride": 2}}


def plan_stack(params: Mapping[str, Any], shape: Shape, path: str, plan: Plan) -> Planned:
    """Plan `cells`; see `_cells`."""
    check_parameters(_cells, params, path)
    return _cells((shape, path, plan), **params)


def _cells(
    where: tuple[Shape, str, Plan],
    cell: Any,
    repeats: int = 1,
    stages: int = 1,
    channels: int | None = None,
    reduction: Any = None,
    join: str | None = None,
) -> Planned:
    """Plan `stages` times `repeats` cells, with a reduction between two stages.

    A cell's inputs are the outputs of the cells before it, the newest one last. An input with other channels or larger
    sides than the cell goes through `projection` or `reduction` first, as in NASNet. Each reduction doubles the
    channels.
    """
    shape, path, plan = where
    if not is_cell(cell):
        raise ArchitectureError(f"{path}.cell", f"must be a cell, got {cell!r}")
    try:
        positive_int("repeats", repeats)
        positive_int("stages", stages)
        if channels is None:
            channels = shape[-1] if len(shape) == 2 else shape[0]
        positive_int("channels", channels)
        joined = one_of("join", "concat" if join is None else join, ("concat", "mean"))
    except ValueError as error:
        raise ArchitectureError(path, str(error)) from error
    if stages == 1 and reduction is not None:
        raise ArchitectureError(f"{path}.reduction", "is between two stages, but stages is 1: leave it out")
    if stages > 1 and len(shape) != 3:
        raise ArchitectureError(path, f"stages must be 1 if the input is {described(shape)}, got {stages}")
    on_edges = "-" in str(next(iter(cell)))
    if on_edges and join is not None:
        raise ArchitectureError(path, "join must not be given for a cell with operations on edges: it has one output")
    cells = [cell, reduction] if is_cell(reduction) else [cell]
    stack = _Stack(path, plan, joined, [shape] * max(map(inputs_of, cells)), [])
    for stage in range(stages):
        if stage > 0:
            channels *= 2
            if is_cell(reduction):
                stack.cell(reduction, channels, "reduction", reduces=True)
            else:
                plain = "residual_reduction" if on_edges else "reduction"
                stack.plain({plain: {"channels": channels}} if reduction is None else reduction)
        for _ in range(repeats):
            stack.cell(cell, channels, "cell", reduces=False)
    return Planned(Call(CellStack, (stack.steps,)), stack.outputs[-1])


@dataclass
class _Stack:
    """The steps planned so far, and the shapes of the outputs that the next step may take, the newest last."""

    path: str
    plan: Plan
    join: str
    outputs: list[Shape]
    steps: list[Call]

    def cell(self, cell: Mapping[Any, Any], channels: int, key: str, *, reduces: bool) -> None:
        """Add a cell, after the modules that adapt its inputs."""
        newest = self.outputs[-1]
        inside = (*newest[:-1], channels) if len(newest) == 2 else (channels, *newest[1:])
        planned = plan_cell(cell, inside, f"{self.path}.{key}", self.plan, join=self.join, reduces=reduces)
        sources, count = used_nodes(cell), inputs_of(cell)
        fits = [
            self.fit(shape, inside) if number in sources else Call(nn.Identity)
            for number, shape in enumerate(self.outputs[-count:])
        ]
        self.add(fits, planned)

    def plain(self, reduction: Any) -> None:
        """Add a reduction that isn't a cell."""
        path = f"{self.path}.reduction"
        newest = self.outputs[-1]
        planned = self.plan(reduction, newest, path)
        if len(planned.shape) != 3 or planned.shape[1:] != halved(newest)[1:]:
            sides = " x ".join(map(str, halved(newest)[1:]))
            raise ArchitectureError(path, f"must halve the sides, to {sides} pixels, got {described(planned.shape)}")
        self.add([Call(nn.Identity)], planned)

    def add(self, fits: list[Call], planned: Planned) -> None:
        self.steps.append(Call(Step, (fits, planned.call)))
        self.outputs = [*self.outputs[1:], planned.shape]

    def fit(self, shape: Shape, target: Shape) -> Call:
        """Plan the reductions and the projection that turn one shape into another, or the identity."""
        channels = target[-1] if len(target) == 2 else target[0]
        calls = []
        while len(shape) == 3 and shape[1:] != target[1:]:
            planned = self.plan({"reduction": {"channels": channels}}, shape, self.path)
            calls.append(planned.call)
            shape = planned.shape
        if shape != target:
            calls.append(self.plan({"projection": {"channels": channels}}, shape, self.path).call)
        match calls:
            case []:
                return Call(nn.Identity)
            case [call]:
                return call
        return Call(nn.Sequential, tuple(calls))


def relu_conv(channels: int, kernel: tuple[int, int], stride: tuple[int, int]) -> list[nn.Module]:
    """Return ReLU, convolution and batch normalization."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    conv = nn.Conv2d(channels, channels, kernel, stride, padding, bias=False)
    return [nn.ReLU(), conv, nn.BatchNorm2d(channels)]


def relu_separable(channels: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    """Return ReLU, depthwise separable convolution (Chollet, CVPR 2017) and batch normalization."""
    padding = dilation * (kernel // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    ]


def square_conv(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a convolution with a square kernel."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_conv(channels, (kernel, kernel), (stride, stride)))


def twice_separable(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return NASNet's separable convolution, which is applied twice, the first time with the stride."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_separable(channels, kernel, stride), *relu_separable(channels, kernel, 1))


def dilated(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a separable convolution with dilation 2."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_separable(channels, kernel, stride, dilation=2))


@operation("conv_1x1", "nor_conv_1x1")
def conv_1x1(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 1x1 convolution, batch normalization."""
    return square_conv(shape, 1, stride)


@operation("conv_3x3", "nor_conv_3x3")
def conv_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 3x3 convolution, batch normalization."""
    return square_conv(shape, 3, stride)


@operation()
def conv_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 5x5 convolution, batch normalization."""
    return square_conv(shape, 5, stride)


def two_kernels(shape: Shape, length: int, stride: int) -> nn.Module:
    """Return NASNet's two convolutions of 1 x length and length x 1 pixels."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_conv(channels, (1, length), (1, stride)), *relu_conv(channels, (length, 1), (stride, 1)))


@operation("conv_1x3_3x1")
def conv_1x3_3x1(shape: Shape, stride: int = 1) -> nn.Module:
    """Convolutions of 1x3 and of 3x1."""
    return two_kernels(shape, 3, stride)


@operation("conv_1x7_7x1", "conv_7x1_1x7")
def conv_1x7_7x1(shape: Shape, stride: int = 1) -> nn.Module:
    """Convolutions of 1x7 and of 7x1."""
    return two_kernels(shape, 7, stride)


@operation("sep_3x3", "sep_conv_3x3")
def sep_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 3x3, twice."""
    return twice_separable(shape, 3, stride)


@operation("sep_5x5", "sep_conv_5x5")
def sep_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 5x5, twice."""
    return twice_separable(shape, 5, stride)


@operation("sep_7x7", "sep_conv_7x7")
def sep_7x7(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 7x7, twice."""
    return twice_separable(shape, 7, stride)


@operation("dil_3x3", "dil_conv_3x3")
def dil_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Dilated separable convolution of 3x3, once."""
    return dilated(shape, 3, stride)


@operation("dil_5x5", "dil_conv_5x5")
def dil_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Dilated separable convolution of 5x5, once."""
    return dilated(shape, 5, stride)


def max_of(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a max pool that keeps the image's size if the stride is 1."""
    image(shape)
    return nn.MaxPool2d(kernel, positive_int("stride", stride), kernel // 2)


@operation("max_3x3", "max_pool_3x3")
def max_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 3x3 pixels."""
    return max_of(shape, 3, stride)


@operation("max_5x5", "max_pool_5x5")
def max_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 5x5 pixels."""
    return max_of(shape, 5, stride)


@operation("max_7x7", "max_pool_7x7")
def max_7x7(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 7x7 pixels."""
    return max_of(shape, 7, stride)


@operation("avg_3x3", "avg_pool_3x3")
def avg_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Mean of 3x3 pixels, without the padding."""
    image(shape)
    return nn.AvgPool2d(3, positive_int("stride", stride), 1, count_include_pad=False)
