"""A trial without a search: what the built-in trainers need to be stepped in a plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlainTrial:
    """Parameters, and nobody to report to."""

    params: Mapping[str, Any]
