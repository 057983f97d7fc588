"""Whether a process still runs the code that is there: a module is imported once, and may be edited after that."""

from __future__ import annotations

import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["LoadedCode", "is_own"]

_OURS = frozenset(("hpsearch", "hpsearch_comm", "hpsearch_trainers"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_LIBRARY = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


class _Imported(NamedTuple):
    """A file at the first look after it was imported."""

    since: int
    """When it wasn't imported yet, in nanoseconds."""
    written: int
    """When it was last written, likewise."""
    size: int


class LoadedCode:
    """Looks at the files of the modules that this process has imported, but for installed ones."""

    def __init__(self) -> None:
        self._last_look = time.time_ns()
        self._known: dict[str, _Imported] = {}

    def edited(self) -> str | None:
        """Name a module whose file was written since it was imported; None: there is none.

        Of one that was imported since the last look that is said from the last look on.
        """
        found, now = None, time.time_ns()
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or not is_own(name, path):
                continue
            try:
                state = Path(path).stat()
            except OSError:  # what is gone can't be run by others, either
                continue
            there = _Imported(self._last_look, state.st_mtime_ns, state.st_size)
            known = self._known.setdefault(path, there)
            if there.written > known.since or (there.written, there.size) != (known.written, known.size):
                found = name
        self._last_look = now
        return found


def is_own(name: str, path: str, package: str = "") -> bool:
    """Say whether a module is the user's: not of the standard library, ours, or installed.

    Args:
        name: The module's.
        path: Its file's.
        package: The user's own outermost package, which may be installed as well.
    """
    outermost = name.partition(".")[0]
    if outermost in _OURS or not path.startswith("/"):  # torch's `ops` and `classes` make up a file
        return False
    if not _INSTALLED.isdisjoint(Path(path).parts):
        return outermost == package and package != "__main__"
    return not path.startswith(_LIBRARY)
