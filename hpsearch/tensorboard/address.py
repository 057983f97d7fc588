"""The addresses at which TensorBoard shows what is to be seen.

Its Time Series page reads its settings from the query (`DashboardDeepLinkProvider` in the front end of 2.21), the older
pages, as Custom Scalars, theirs from the fragment (`tf-storage`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

__all__ = ["MOST_RUNS", "TICKED_BY_OLD_PAGES", "curves_address", "pattern_of", "studies_address"]

MOST_RUNS = 500
"""Runs that the Time Series page ticks by itself; of more it ticks none."""

TICKED_BY_OLD_PAGES = 40
"""Likewise Scalars and Custom Scalars."""

_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|]")


def pattern_of(runs: Mapping[str, Sequence[str]], studies: Sequence[str]) -> str:
    """Give a regular expression for some runs, as browsers read it.

    Args:
        runs: Of some folders the names of runs in it.
        studies: Whole names of more runs.
    """
    one_of = [f"{_quoted(folder)}/({'|'.join(map(_quoted, names))})" for folder, names in runs.items() if names]
    return f"^({'|'.join([*one_of, *map(_quoted, studies)])})$"


def curves_address(server: str, pattern: str | None, tags: Sequence[str], by_study: bool) -> str:
    """Give the address of the curves.

    Args:
        server: TensorBoard's address.
        pattern: Of the runs that are shown; None: all.
        tags: Scalars whose charts are pinned to the top.
        by_study: Runs of one study have one colour; else each has its own.
    """
    query = {"smoothing": "0"}
    if pattern is not None:
        query["runFilter"] = pattern
    if by_study:
        query["runColorGroup"] = "regex:^(.+)/[^/]+$"
    if tags:
        pinned = [{"plugin": "scalars", "tag": tag} for tag in tags]
        query["pinnedCards"] = json.dumps(pinned, separators=(",", ":"))
    settings = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return f"{server}?{settings}#timeseries"


def studies_address(server: str, pattern: str) -> str:
    """Give the address of the page on the studies as such; `pattern` is that of their runs."""
    return f"{server}#custom_scalars&regexInput={quote(pattern, safe='')}&_smoothingWeight=0"


def _quoted(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)
