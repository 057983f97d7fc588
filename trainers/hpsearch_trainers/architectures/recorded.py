"""The architecture of a network, stored with it, so that a checkpoint contains it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.cell_modules import Network

__all__ = ["architecture_of", "record", "weights_in"]


def record(network: nn.Module, **arguments: Any) -> None:
    """Store the arguments of `network` with the module, if JSON can represent them."""
    try:
        network.architecture = json.loads(json.dumps(arguments))
    except (TypeError, ValueError):
        return


def architecture_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of `network`, `costs` and `standalone` for this model, as plain containers.

    Args:
        model: A result of `network`. For any other module the result is None, also if it contains such a network.

    Returns:
        A mapping with "value", "inputs", "outputs", "stem" and "head"; or None.
    """
    architecture: Any = vars(model).get("architecture")
    return architecture if isinstance(model, Network) and isinstance(architecture, dict) else None


def weights_in(state: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the weights of a checkpoint that were validated, as a network's `state_dict`.

    Args:
        state: A Trainer's `state_dict()`, or any mapping with "model". "average", if present, is the `state_dict` of
            torch's `AveragedModel`, and what was validated.

    Returns:
        "average" or "model", and the weights; or None if there are none.
    """
    average, model = state.get("average"), state.get("model")
    if isinstance(average, Mapping):
        return "average", {
            name.removeprefix("module."): value for name, value in average.items() if name != "n_averaged"
        }
    return ("model", dict(model)) if isinstance(model, Mapping) else None
