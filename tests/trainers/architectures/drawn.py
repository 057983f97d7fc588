"""Architectures for images that hypothesis draws: every one can be built."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEEPS = [
    *("skip", "none", "relu", "tanh", "dropout", "batch_norm", "conv", "separable"),
    *("mbconv", "conv_1x1", "conv_3x3", "conv_1x3_3x1", "sep_3x3", "dil_3x3", "max_3x3", "avg_3x3"),
    {"conv": {"kernel": 5, "norm": "none"}},
    {"max_pool": {"kernel": 3, "stride": 1}},
    {"activation": {"kind": "elu"}},
]
"""Operations that leave an image's shape as it is."""

STRIDED = ["skip", "none", "sep_3x3", "max_3x3", "avg_3x3", "conv_1x1", {"conv": {"kernel": 5}}]
"""Of these, some that can have a stride."""

CHANGES = [
    *("pool", "reduction", "residual_reduction"),
    {"conv": {"channels": 3, "stride": 2}},
    {"separable": {"channels": 4, "dilation": 2}},
    {"mbconv": {"channels": 2}},
    {"avg_pool": {"kernel": 3}},
    {"adaptive_pool": {"side": 3}},
]
"""Operations that change it."""


def edge_cells(operations: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    @st.composite
    def cells(draw: st.DrawFn) -> Any:
        nodes = draw(st.integers(2, 4))
        return {f"{start}-{end}": draw(operations) for end in range(1, nodes) for start in range(end)}

    return cells()


def node_cells(
    operations: st.SearchStrategy[Any], strided: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[Any]:
    """Cells, or reduction cells, in which what reads an input is one of `strided`."""

    @st.composite
    def cells(draw: st.DrawFn) -> Any:
        inputs, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return {str(node): [side(draw, node, inputs) for _ in range(2)] for node in range(inputs, inputs + nodes)}

    def side(draw: st.DrawFn, node: int, inputs: int) -> Any:
        start = draw(st.integers(0, node - 1))
        which = strided if strided is not None and start < inputs else operations
        return {"from": start, "operation": draw(which)}

    return cells()


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bodies = inner.map(lambda body: {"residual": {"body": body}})
    return st.lists(inner, max_size=3) | edge_cells(inner) | node_cells(inner) | bodies


keeping = st.recursive(st.sampled_from(KEEPS), _larger, max_leaves=6)
"""Values that leave an image's shape as it is."""


@st.composite
def stacks(draw: st.DrawFn) -> Any:
    operations, strided = st.sampled_from(KEEPS), st.sampled_from(STRIDED)
    params: dict[str, Any] = {
        "cell": draw(edge_cells(operations) | node_cells(operations)),
        "repeats": draw(st.integers(1, 2)),
        "stages": draw(st.integers(1, 3)),
        "channels": draw(st.integers(1, 5)),
    }
    if params["stages"] > 1:
        plain = st.sampled_from([None, "reduction", "residual_reduction", {"conv": {"channels": 3, "stride": 2}}])
        params["reduction"] = draw(plain | node_cells(operations, strided))
    if "-" not in next(iter(params["cell"])):
        params["join"] = draw(st.sampled_from(["concat", "mean"]))
    return {"cells": params}


architectures = st.lists(keeping | st.sampled_from(CHANGES) | stacks(), max_size=3)
"""Chains of all that there is for images."""

images = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
"""Shapes."""
