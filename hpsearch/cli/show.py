"""`hpsearch show`: show a trial's network and its costs, and write a file that builds it without hpsearch."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.cli.arguments import add_format, add_trial, target, trial_of
from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import writing
from hpsearch.results.study import Study, load
from hpsearch.tables.formats import indented_json, param_cell
from hpsearch.tables.layout import WHOLE, Column, Screen, screen_of, table_text
from hpsearch.trial import TrialRow

if TYPE_CHECKING:
    from torch import Tensor

    from hpsearch.results.trial_network import TrialNetwork
    from hpsearch_trainers.architectures import Layer

_NETWORK, _WEIGHTS = "network.py", "weights.pt"


def show_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch show`."""
    add_trial(command, "(default: the best one)", reads=True)
    text = "write network.py, and weights.pt with the trial's weights, to this folder"
    command.add_argument("--output", type=target, metavar="FOLDER", help=text)
    add_format(command, "json")


def show(args: argparse.Namespace) -> int:
    """Show a trial and its network; write the network to `--output`, if given."""
    from hpsearch.results.trial_network import trial_network

    directory, trial = trial_of(args)
    with contextlib.redirect_stdout(sys.stderr):  # output of the user's searcher or trainable isn't part of the JSON
        study = load(directory)
        network = trial_network(study, trial)
        if network.weights is not None and network.architecture is not None:
            network.module()  # refuses weights that don't match, before printing
        written = None if args.output is None else _write(network, args.output)
        record = _record(network)
    if args.format == "json":
        record["written"] = None if written is None else [str(path) for path in written]
        print(indented_json(record))
        return 0
    print("".join(f"{line}\n" for line in _lines(network, record)), end="")
    if written is not None:
        print("".join(f"{line}\n" for line in _how_to_load(network, written)), end="")
    return 0


def _record(network: TrialNetwork) -> dict[str, Any]:
    """Return all data of the network as JSON values."""
    study, row, step = network.study, network.row, network.step
    record: dict[str, Any] = {
        "trial": row.number,
        "state": row.state.value,
        "iterations": row.iterations,
        **_values(study, row),
        "params": study.sweep.parameters.nest(row.params),
        "metrics": dict(study.metrics_of(row)),
        "checkpoint": None if network.checkpoint is None else str(network.checkpoint),
        "weights": network.weights_are or None,
        "no_weights": network.no_weights or None,
        "architecture": None if network.architecture is None else dict(network.architecture),
        "built_again": network.built_again and network.architecture is not None,
        "unknown": network.unknown or None,
    }
    if network.architecture is not None:
        costs = network.costs()
        record |= {
            "parameters": costs.parameters,
            "flops": costs.flops,
            "peak_memory_bytes": costs.peak_memory_bytes,
            "step": {"rows": step.rows, "optimizer": step.optimizer or None, "optimizer_copies": step.copies},
            "layers": asdict(network.layers()),
        }
    return record


def _values(study: Study, row: TrialRow) -> dict[str, Any]:
    names = [goal.name for goal in study.sweep.objective.goals]
    if len(names) == 1:
        return {"value": row.values[0] if row.values else None}
    return {"values": dict(zip(names, row.values, strict=False))}


def _lines(network: TrialNetwork, record: dict[str, Any]) -> Iterator[str]:
    """Format the network's data as text."""
    from hpsearch.tables.wording import bytes_text, counted

    screen = screen_of(sys.stdout)
    row, step, objective = network.row, network.step, network.study.sweep.objective
    yield f"trial       {row.number}, {row.state.value}, {counted(row.iterations, 'iteration')}"
    if row.failure is not None:
        yield f"failure     {row.failure.message}"
    names = [goal.name for goal in objective.goals]
    for name, value in zip(names, row.values, strict=False):
        yield f"{name:<11} {value!r}"
    for name, value in record["params"].items():
        yield f"  {name:<20} {value!r}"
    further = {name: value for name, value in record["metrics"].items() if name not in names or not row.values}
    if further:
        yield "reported    " + ", ".join(f"{name} {value:.6g}" for name, value in further.items())
    yield f"checkpoint  {network.checkpoint or 'none'}"
    yield f"weights     {_which(network)}"
    if network.architecture is None:
        yield f"network     not known: {network.unknown}"
        if network.weights is not None:
            yield "\n" + weights_to_table(network.weights, screen).strip("\n")
        return
    if network.built_again:
        yield f"network     as {network.study.sweep.trainable} builds it now: no checkpoint says what was built"
    yield "\n" + network_to_table(network.layers(), screen).strip("\n") + "\n"
    yield f"parameters  {record['parameters']:,}"
    yield f"FLOPs       {record['flops']:,} of a forward pass for one row"
    optimizer = step.optimizer or "an optimizer"
    keeps = "that keeps none" if step.copies == 0 else f"that keeps {counted(step.copies, 'number')}"
    rows = f"{counted(step.rows, 'row')}" + ("" if step.reported else " (the trial reported no global_batch)")
    yield (
        f"memory      about {bytes_text(record['peak_memory_bytes'])} at most in a training step of {rows}, with "
        f"{optimizer} {keeps} for each weight"
    )


def _which(network: TrialNetwork) -> str:
    if network.no_weights:
        return f"none: {network.no_weights}"
    iteration = network.row.value_iteration
    average = "the moving average, which was validated, " if network.weights_are == "average" else ""
    return f"{average}after iteration {iteration}" if iteration else f"{average}as they were saved last"


def _write(network: TrialNetwork, folder: Path) -> list[Path]:
    """Write the network's file, and its weights if there are any.

    Raises:
        HpsearchError: A file already exists, the folder can't be written to, or the network is unknown.
    """
    if network.architecture is None:
        raise HpsearchError(f"--output: {network.where} must have a network that is known, but {network.unknown}")
    for name in (_NETWORK, _WEIGHTS):
        if (folder / name).exists():
            raise HpsearchError(f"--output: {folder / name} must not be there yet: name another folder, or delete it")
    source = network.source()
    written = [folder / _NETWORK]
    with writing(f"--output: {folder} must be a folder that can be written to", "Name another."):
        folder.mkdir(parents=True, exist_ok=True)
        if network.weights is not None:
            import torch

            with (folder / _WEIGHTS).open("xb") as file:
                torch.save(dict(network.weights), file)
            written.append(folder / _WEIGHTS)
        with (folder / _NETWORK).open("x", encoding="utf-8") as text:
            text.write(source)
    return written


def _how_to_load(network: TrialNetwork, written: list[Path]) -> Iterator[str]:
    yield ""
    for path in written:
        yield f"wrote       {path}"
    folder = shlex.quote(str(written[0].parent))
    if network.weights is None:
        yield f"no weights are there ({network.no_weights}); `build()` of network.py makes new ones"
    else:
        yield f"load it in {folder} with: from network import load; network = load({_WEIGHTS!r}).eval()"


def network_to_table(network: Layer, screen: Screen = WHOLE) -> str:
    """Return the layers as a tree for a terminal. In a stack of equal cells, only the first cell is expanded."""
    lines = [*_layer_lines(network, 0), ("in all", network)]
    return table_text(
        [
            Column("network", [text for text, _ in lines], is_text=True, is_kept=True),
            Column("gives", ["x".join(map(str, layer.shape or ())) for _, layer in lines]),
            Column("parameters", [f"{layer.parameters:,}" for _, layer in lines]),
            Column("FLOPs", [f"{layer.flops:,}" for _, layer in lines]),
        ],
        screen,
        "with --format json",
    )


def _layer_lines(layer: Layer, depth: int) -> Iterator[tuple[str, Layer]]:
    shown: set[str] = set()
    for inner in layer.parts:
        again = inner.kind == "step" and inner.place in shown
        shown.add(inner.place)
        yield "  " * depth + _layer_text(inner) + (", as above" if again else ""), inner
        if not again:
            yield from _layer_lines(inner, depth + 1)


def _layer_text(layer: Layer) -> str:
    texts = [f"node {layer.place}" if layer.kind == "node" else layer.place]
    if layer.takes is not None and layer.kind != "step":
        texts.append(f"from {layer.takes}:" if "-" not in layer.place and not layer.place.startswith("input") else "")
    texts.append({"edges": "cell", "nodes": "cell", "step": ""}.get(layer.kind, layer.name))
    texts += [f"{name}={param_cell(value)}" for name, value in layer.settings.items()]
    return " ".join(text for text in texts if text)


def weights_to_table(weights: Mapping[str, Tensor], screen: Screen = WHOLE) -> str:
    """Return weights as a table for a terminal, if only the names of the weights are known."""
    tensors = {name: tensor for name, tensor in weights.items() if hasattr(tensor, "numel")}
    names, sizes = [*tensors, "in all"], [int(tensor.numel()) for tensor in tensors.values()]
    shapes: Sequence[str] = ["x".join(map(str, tensor.shape)) for tensor in tensors.values()]
    return table_text(
        [
            Column("weights", names, is_text=True, is_kept=True),
            Column("shape", [*shapes, ""]),
            Column("numbers", [f"{size:,}" for size in (*sizes, sum(sizes))]),
        ],
        screen,
    )
