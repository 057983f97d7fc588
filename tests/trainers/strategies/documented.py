"""The strategy that docs/extending.md shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpsearch_trainers.strategies import Strategy

_PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


def documented_strategy() -> type[Strategy]:
    """Return the strategy."""
    found = re.search(r"^```python\n# compressed_allreduce.py\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "compressed_allreduce"}
    exec(compile(found[1], str(_PAGE), "exec"), names)
    strategy: type[Strategy] = names["CompressedAllreduce"]
    return strategy
