"""Stacks of cells: stages of one normal cell, with reductions in between, as in NASNet and NAS-Bench-201."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.calls import Call, Planned
from hpsearch_trainers.architectures.cell_modules import CellStack, Step
from hpsearch_trainers.architectures.cells import Plan, inputs_of, is_cell, plan_cell, used_nodes
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.plan import check_parameters
from hpsearch_trainers.architectures.shapes import Shape, described, halved, one_of, positive_int

__all__ = ["plan_stack"]


def _signature(
    shape: Shape,
    cell: Any,
    repeats: int = 1,
    stages: int = 1,
    channels: int | None = None,
    reduction: Any = None,
    join: str = "concat",
) -> nn.Module:
    """Declare the parameters of `cells`."""
    raise NotImplementedError


def plan_stack(params: Mapping[str, Any], shape: Shape, path: str, plan: Plan) -> Planned:
    """Plan `cells`: `stages` times `repeats` cells, with a reduction between two stages.

    A cell's inputs are the outputs of the cells before it, the newest one last. An input with other channels or larger
    sides than the cell goes through `projection` or `reduction` first, as in NASNet. Each reduction doubles the
    channels.
    """
    check_parameters(_signature, params, path)
    cell, reduction = params["cell"], params.get("reduction")
    if not is_cell(cell):
        raise ArchitectureError(f"{path}.cell", f"must be a cell, got {cell!r}")
    try:
        repeats, stages = (
            positive_int("repeats", params.get("repeats", 1)),
            positive_int("stages", params.get("stages", 1)),
        )
        requested = params.get("channels")
        channels = (
            (shape[-1] if len(shape) == 2 else shape[0]) if requested is None else positive_int("channels", requested)
        )
        join = one_of("join", params.get("join", "concat"), ("concat", "mean"))
    except ValueError as error:
        raise ArchitectureError(path, str(error)) from error
    if stages == 1 and reduction is not None:
        raise ArchitectureError(f"{path}.reduction", "is between two stages, but stages is 1: leave it out")
    if stages > 1 and len(shape) != 3:
        raise ArchitectureError(path, f"stages must be 1 if the input is {described(shape)}, got {stages}")
    on_edges = "-" in str(next(iter(cell)))
    if on_edges and "join" in params:
        raise ArchitectureError(path, "join must not be given for a cell with operations on edges: it has one output")
    cells = [cell, reduction] if is_cell(reduction) else [cell]
    stack = _Stack(path, plan, join, [shape] * max(map(inputs_of, cells)), [])
    for stage in range(stages):
        if stage > 0:
            channels *= 2
            if reduction is not None and is_cell(reduction):
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
