"""Networks for people and other programs: a line for each part, with its shape and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpsearch.tables.formats import param_cell
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text

if TYPE_CHECKING:
    from torch import Tensor

    from hpsearch_trainers.architectures import Layer

__all__ = ["layer_record", "network_to_table", "weights_to_table"]


def network_to_table(network: Layer, screen: Screen = WHOLE) -> str:
    """Give the parts as a tree for a terminal; of a stack's equal cells, the first alone has its parts."""
    lines = [*_lines(network, 0), ("in all", network)]
    return table_text(
        [
            Column("network", [text for text, _ in lines], is_text=True, is_kept=True),
            Column("gives", ["x".join(map(str, part.shape or ())) for _, part in lines]),
            Column("parameters", [f"{part.parameters:,}" for _, part in lines]),
            Column("FLOPs", [f"{part.flops:,}" for _, part in lines]),
        ],
        screen,
        "with --format json",
    )


def _lines(layer: Layer, depth: int) -> Iterator[tuple[str, Layer]]:
    shown: set[str] = set()
    for part in layer.parts:
        again = part.kind == "step" and part.place in shown
        shown.add(part.place)
        yield "  " * depth + _text(part) + (", as above" if again else ""), part
        if not again:
            yield from _lines(part, depth + 1)


def _text(layer: Layer) -> str:
    words = [f"node {layer.place}" if layer.kind == "node" else layer.place]
    if layer.takes is not None and layer.kind != "step":
        words.append(f"from {layer.takes}:" if "-" not in layer.place and not layer.place.startswith("input") else "")
    words.append({"edges": "cell", "nodes": "cell", "step": ""}.get(layer.kind, layer.name))
    words += [f"{name}={_setting(value)}" for name, value in layer.settings.items()]
    return " ".join(word for word in words if word)


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else param_cell(value)


def layer_record(layer: Layer) -> dict[str, Any]:
    """Give a part and what it is made of for JSON."""
    return {
        "place": layer.place,
        "name": layer.name,
        "kind": layer.kind,
        "settings": dict(layer.settings),
        "takes": layer.takes,
        "shape": None if layer.shape is None else list(layer.shape),
        "parameters": layer.parameters,
        "flops": layer.flops,
        "parts": [layer_record(part) for part in layer.parts],
    }


def weights_to_table(weights: Mapping[str, Tensor], screen: Screen = WHOLE) -> str:
    """Give weights for a terminal, where nothing but their names is known of a network."""
    tensors = {name: one for name, one in weights.items() if hasattr(one, "numel")}
    names, sizes = [*tensors, "in all"], [int(one.numel()) for one in tensors.values()]
    shapes: Sequence[str] = ["x".join(map(str, one.shape)) for one in tensors.values()]
    return table_text(
        [
            Column("weights", names, is_text=True, is_kept=True),
            Column("shape", [*shapes, ""]),
            Column("numbers", [f"{size:,}" for size in (*sizes, sum(sizes))]),
        ],
        screen,
    )
