"""A suggestion for a misspelled name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" if a known name is similar, ignoring case, else an empty string."""
    cases = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(str(name).lower(), cases, n=1)
    return f"; did you mean {cases[matches[0]]!r}?" if matches else ""
