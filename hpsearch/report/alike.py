"""Whether params made any difference to what trials came to: where not, the training may never have seen them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from hpsearch.trial import TrialRow

__all__ = ["FEWEST", "all_alike"]

FEWEST = 5
"""Trials of different params that must have come to the same before that is remarkable."""


def all_alike(rows: Sequence[TrialRow]) -> bool:
    """Say whether trials of different params have the same values wherever two of them ran for equally long.

    Args:
        rows: Those that have values.
    """
    found: defaultdict[int, set[tuple[float, ...]]] = defaultdict(set)
    for row in rows:
        found[row.iterations].add(row.values)
    params = {json.dumps(row.params, sort_keys=True) for row in rows}
    return (
        len(params) >= FEWEST and len(params) >= 2 * len(found) and all(len(values) == 1 for values in found.values())
    )
