"""Detect modules that were edited after this process imported them."""

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
    """A file at the first check after its import."""

    since: int
    """A time before its import, in nanoseconds."""
    written: int
    """Its modification time, in nanoseconds."""
    size: int


class LoadedCode:
    """Checks the files of the modules that this process has imported, except installed ones."""

    def __init__(self) -> None:
        self._last_look = time.time_ns()
        self._known: dict[str, _Imported] = {}

    def edited(self) -> str | None:
        """Return the name of a module whose file was written since its import; None: there is none.

        For a module imported since the last check, edits count from that check on.
        """
        found, now = None, time.time_ns()
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or not is_own(name, path):
                continue
            try:
                state = Path(path).stat()
            except OSError:  # a missing file can't be run by others, either
                continue
            there = _Imported(self._last_look, state.st_mtime_ns, state.st_size)
            known = self._known.setdefault(path, there)
            if there.written > known.since or (there.written, there.size) != (known.written, known.size):
                found = name
        self._last_look = now
        return found


def is_own(name: str, path: str, package: str = "") -> bool:
    """Return whether a module is the user's: not of the standard library, ours, or installed.

    Args:
        name: The module's.
        path: Path of its file.
        package: The user's own top-level package, which may be installed.
    """
    outermost = name.partition(".")[0]
    if outermost in _OURS or not path.startswith("/"):  # torch's `ops` and `classes` name files that don't exist
        return False
    if not _INSTALLED.isdisjoint(Path(path).parts):
        return outermost == package and package != "__main__"
    return not path.startswith(_LIBRARY)
