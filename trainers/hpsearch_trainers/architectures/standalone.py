"""Writes a network as a Python file that builds it and loads its weights with torch alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hpsearch_trainers.architectures.calls import Call, module
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.shapes import Shape
from hpsearch_trainers.architectures.source import NoSourceError, Sources

__all__ = ["standalone"]

_WIDTH = 120
"""Columns of a line, where it can be broken."""

_IMPORTS = {"sys": "import sys", "torch": "import torch", "nn": "from torch import nn"}

_FILE = '''"""A network, written by hpsearch. It needs nothing but torch.

`python FILE WEIGHTS` loads the weights and prints the network. `build` returns it, `load` returns it with its weights.
"""

from __future__ import annotations

{imports}

INPUTS = {inputs}
"""The shape of the input, without the batch."""


{definitions}


def build() -> nn.Module:
    """Return the network, with new weights."""
    return {network}


def load(path: str) -> nn.Module:
    """Return the network with the weights of a file: its state_dict, or a checkpoint with the key `model`.

    If a checkpoint has a moving average of the weights, as `average`, that is loaded: it was validated.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state.get("average"), dict):
        kept = state["average"].items()
        state = {{name.removeprefix("module."): one for name, one in kept if name != "n_averaged"}}
    elif isinstance(state.get("model"), dict):
        state = state["model"]
    network = build()
    network.load_state_dict(state)
    return network


if __name__ == "__main__":
    network = load(sys.argv[1]) if len(sys.argv) > 1 else build()
    network.eval()
    print(network)
    with torch.no_grad():
        outputs = network(torch.zeros(1, *INPUTS))
    print(f"{{sum(one.numel() for one in network.parameters())}} parameters, outputs {{tuple(outputs.shape)}}")
'''


def standalone(
    value: Any,
    inputs: Shape = (1, 8, 8),
    outputs: int = 10,
    *,
    stem: Any = None,
    head: Any = None,
    path: str = "architecture",
) -> str:
    """Return the source of a Python file that builds what `network` builds, and needs only torch.

    Its `build()` returns the network, with the same names of weights; `load(path)` loads them from a file. The current
    source of operations is included, with the functions, classes and constants that it needs.

    Args:
        value: As in `network`.
        inputs: As in `network`.
        outputs: As in `network`.
        stem: As in `network`.
        head: As in `network`.
        path: As in `network`.

    Raises:
        ArchitectureError: No network can be built from it; or an operation has no source, as in a notebook, or needs
            more than torch and Python.
    """
    call = plan_network(value, inputs, outputs, stem=stem, head=head, path=path)
    sources = Sources(_IMPORTS, {"INPUTS", "build", "load", "network", "outputs"})
    try:
        network = _source(call, sources, 4, len("return "))
        text = _FILE.format(
            imports=sources.imports(),
            inputs=tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,),
            definitions=sources.definitions(),
            network=network,
        )
    except NoSourceError as error:
        raise ArchitectureError(path, f"can't be written as a standalone file: {error}") from error
    _compare(text, call, path)
    return text


def _source(term: Any, sources: Sources, indent: int, before: int = 0) -> str:
    """Return a term as source code, on one line if it fits after `before` characters."""
    opening, parts, closing = _parts(term, sources, indent)
    line = opening + ", ".join(parts) + closing
    if not parts or ("\n" not in line and indent + before + len(line) < _WIDTH):
        return f"({parts[0]},)" if isinstance(term, tuple) and len(term) == 1 else line
    inner = " " * (indent + 4)
    return opening + "\n" + "".join(f"{inner}{part},\n" for part in parts) + " " * indent + closing


def _parts(term: Any, sources: Sources, indent: int) -> tuple[str, list[str], str]:
    """Return the opening of a term, its parts, and its closing."""
    inside = indent + 4
    if isinstance(term, Call):
        parts = [_source(item, sources, inside) for item in term.arguments]
        parts += [f"{name}={_source(item, sources, inside, len(name) + 1)}" for name, item in term.keywords.items()]
        return _function(term, sources) + "(", parts, ")"
    if isinstance(term, Mapping):
        keys = [(_literal(key), item) for key, item in term.items()]
        return "{", [f"{key}: {_source(item, sources, inside, len(key) + 2)}" for key, item in keys], "}"
    if isinstance(term, list | tuple):
        opening, closing = "[]" if isinstance(term, list) else "()"
        return opening, [_source(item, sources, inside) for item in term], closing
    return _literal(term), [], ""


def _function(call: Call, sources: Sources) -> str:
    name = getattr(call.function, "__name__", "")
    if getattr(nn, name, None) is call.function:
        return f"nn.{name}"
    return sources.add(call.function)


def _literal(value: Any) -> str:
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        text = repr(value)
        plain = type(value) is str and not {'"', "\\"} & set(text[1:-1])
        return f'"{text[1:-1]}"' if plain else text
    raise NoSourceError(f"a parameter must be a number, a text, true or false, or none, got {value!r}")


def _compare(text: str, call: Call, path: str) -> None:
    """Raise ArchitectureError unless the source builds the same network as the call. No weights are allocated."""
    written = ModuleType("hpsearch_standalone_network")
    sys.modules[written.__name__] = written
    try:
        exec(compile(text, written.__name__, "exec"), written.__dict__)
        with torch.device("meta"):
            written_network, network = written.build(), module(call)
    except Exception as error:
        raise ArchitectureError(
            path, f"can't be written as a standalone file: it fails there with {type(error).__name__}: {error}"
        ) from error
    finally:
        del sys.modules[written.__name__]
    if str(written_network) != str(network) or _names(written_network) != _names(network):
        raise ArchitectureError(path, "can't be written as a standalone file: it is another network there")


def _names(model: nn.Module) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()]
