"""Searchers: what to try next.

A searcher is added in two files: its own, and a line in `KNOWN` below, which sweep files and the Python API read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpsearch.checks import InvalidKey, nearest
from hpsearch.errors import SweepError
from hpsearch.imports import import_object
from hpsearch.searchers.base import NotYet, Observation, Searcher, Suggestion
from hpsearch.searchers.grid import GridSearcher
from hpsearch.searchers.points import PointsToTry
from hpsearch.searchers.random import RandomSearcher

__all__ = [
    "KNOWN",
    "GridSearcher",
    "NotYet",
    "Observation",
    "PointsToTry",
    "RandomSearcher",
    "Searcher",
    "Suggestion",
    "searcher_named",
]

KNOWN: Mapping[str, type[Searcher]] = {cls.kind: cls for cls in (RandomSearcher, GridSearcher)}
"""The `method` of a sweep to its searcher."""


def searcher_named(method: str) -> type[Searcher]:
    """Give the searcher of a `method`: a known word, or the import path `package.module:Class` of a third party's.

    Raises:
        InvalidKey: There is none of this name.
    """
    if method in KNOWN:
        return KNOWN[method]
    if ":" not in method:
        close = nearest(method, KNOWN)
        raise InvalidKey((), f"must be {' or '.join(KNOWN)}, got {method!r}", close if close.startswith("did") else "")
    try:
        found = import_object(method, "method", SweepError, [str(Path.cwd())])
    except SweepError as error:
        raise InvalidKey((), str(error)) from error
    if not (isinstance(found, type) and issubclass(found, Searcher)):
        raise InvalidKey((), f"must be a class derived from hpsearch.Searcher, but {method} is {found!r}")
    return found
