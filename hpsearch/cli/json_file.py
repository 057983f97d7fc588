"""JSON that a command is given in a file or by standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import HpsearchError

__all__ = ["read_json"]


def read_json(path: Path, error_type: type[HpsearchError]) -> tuple[str, Any]:
    """Give what to call the place in a message, and what it holds.

    Args:
        path: The file; `-` is standard input.
        error_type: Raised where it can't be read, or isn't JSON.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return name, parse_json(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error_type(f"{name}: must be JSON: {error}") from None
