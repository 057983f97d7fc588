"""Spaces of parameters that hang on each other, for whoever can search them."""

from __future__ import annotations

from typing import Any

from hpsearch.space import (
    Cell,
    Chain,
    Choice,
    Derived,
    IntUniform,
    LogUniform,
    Ordinal,
    Repeat,
    Space,
    Uniform,
    When,
)

_PARAMETERS: dict[str, Any] = {
    "x": Uniform(0.0, 1.0),
    "optimizer": Choice({"sgd": {"momentum": Uniform(0.0, 0.99)}, "adam": {}}),
    "nesterov": When("optimizer.sgd.momentum > 0.5", [True, False]),
    "warmup": When("optimizer == 'adam'", {"steps": Ordinal([1, 2, 4])}),
    "blocks": Repeat({"width": Ordinal([8, 16, 32]), "norm": ["a", "b"], "p": When("norm == 'a'", [0, 1])}, 0, 2),
    "layers": Chain({"conv": {"kernel": [3, 5]}, "pool": {}}, 1, 2),
    "cell": Cell({"skip": {}, "conv": {"kernel": [3, 5]}}, 1, "node"),
    "edges": Cell(["none", "skip"], 2),
    "width": Derived("sum(blocks.*.width)"),
}
_CONSTRAINTS = ("width <= 48", "x < 0.9 or optimizer == 'adam'", "blocks + layers <= 3")

STRUCTURES = Space.from_parameters(_PARAMETERS, _CONSTRAINTS)
"""All that there is: choices, conditions, repeated blocks, cells, a derived value, constraints."""

UNCONSTRAINED = Space.from_parameters(_PARAMETERS)

UNBOUNDED = Space.from_parameters({**_PARAMETERS, "layers": Chain({"conv": {"w": IntUniform(1, 9)}, "pool": {}}, 0)})
"""Its layers have no end."""

NUMERIC = Space.from_parameters(
    {
        "x": Uniform(0.0, 1.0),
        "lr": LogUniform(1e-3, 1.0),
        "widths": Repeat({"width": IntUniform(1, 8), "p": When("width > 4", Uniform(0.0, 1.0))}, 0, 2),
        "size": Ordinal(["s", "m", "l"]),
    },
    ["x * lr <= 0.5", "sum(widths.*.width) <= 12"],
)
"""Of numbers and ordered choices alone."""

FINITE = Space.from_parameters(
    {
        "optimizer": Choice({"sgd": {"nesterov": [True, False]}, "adam": {}}),
        "blocks": Repeat(Ordinal([16, 32]), 0, 2),
        "edges": Cell(["none", "skip"], 2),
        "steps": When("optimizer == 'adam'", [1, 2]),
    },
    ["sum(blocks.*) <= 48"],
)
"""Of few points."""


def structured(method: str) -> Space:
    """Return the space that a method can search."""
    if method == "cmaes":
        return NUMERIC
    return UNCONSTRAINED if method == "qmc" else STRUCTURES
