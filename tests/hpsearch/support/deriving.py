"""Functions that derive values, as sweeps name them; some as they shouldn't be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

CALLS: list[dict[str, Any]] = []
"""What `size` was called with."""


def size(params: dict[str, Any]) -> int:
    CALLS.append(params)
    return sum(int(layer["conv"]["width"]) for layer in params["layers"] if isinstance(layer, dict) and "conv" in layer)


def even(params: dict[str, Any]) -> int:
    if params["x"] % 2:
        raise ValueError(f"x must be even, got {params['x']}")
    return int(params["x"]) // 2


def as_numpy(params: dict[str, Any]) -> Any:
    return np.float64(params["x"] / 4)


def nothing_plain(params: dict[str, Any]) -> Any:
    return object()


def no_number(params: dict[str, Any]) -> float:
    return math.nan


def breaks(params: dict[str, Any]) -> int:
    return int(params["y"])


def spoils(params: dict[str, Any]) -> int:
    params["x"] = 99
    return 1


NOT_CALLABLE = 3


def never(params: dict[str, Any]) -> int:
    """Refuse every point."""
    CALLS.append(params)
    raise ValueError("no x will do")
