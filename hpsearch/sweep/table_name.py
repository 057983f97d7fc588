"""How a sweep names a recorded table as its trainable."""

from __future__ import annotations

import re

__all__ = ["is_table", "table_and_task"]

_TABLE = re.compile(r"(.+?\.ya?ml)(?:#(.*))?", re.DOTALL)


def is_table(trainable: object) -> bool:
    """Say whether a trainable is named as a table's description: `curves.yaml`, or `curves.yaml#task`."""
    return isinstance(trainable, str) and _TABLE.fullmatch(trainable) is not None


def table_and_task(named: str) -> tuple[str, str]:
    """Give the path of a description, whose folders may have # in their names, and the task behind it, or none."""
    found = _TABLE.fullmatch(named)
    return (named, "") if found is None else (found[1], found[2] or "")
