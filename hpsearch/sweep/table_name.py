"""Recognition of trainables that are recorded tables."""

from __future__ import annotations

import re

__all__ = ["is_table", "table_and_task"]

_TABLE = re.compile(r"(.+?\.ya?ml)(?:#(.*))?", re.DOTALL)


def is_table(trainable: object) -> bool:
    """Return whether a trainable is the path of a table's description: `curves.yaml`, or `curves.yaml#task`."""
    return isinstance(trainable, str) and _TABLE.fullmatch(trainable) is not None


def table_and_task(trainable: str) -> tuple[str, str]:
    """Return the path of a description, whose folders may contain #, and the task; empty if there is none."""
    match = _TABLE.fullmatch(trainable)
    return (trainable, "") if match is None else (match[1], match[2] or "")
