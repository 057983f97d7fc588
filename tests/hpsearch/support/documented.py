"""The examples of docs/extending.md, as modules that a sweep can name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_PAGE = Path(__file__).parents[3] / "docs/extending.md"
_EXAMPLES = re.compile(r"^```python\n(# (\w+)\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)


def _modules() -> dict[str, ModuleType]:
    """Import the page's files under their own names, as if they lay where hpsearch is started."""
    modules = {}
    for text, name in _EXAMPLES.findall(_PAGE.read_text()):
        sys.modules[name] = modules[name] = ModuleType(name)
        exec(compile(text, f"{_PAGE}:{name}.py", "exec"), modules[name].__dict__)
    return modules


_FOUND = _modules()

BetterHalf: Any = _FOUND["better_half"].BetterHalf
HillClimbing: Any = _FOUND["hill_climbing"].HillClimbing
