"""Addresses of TensorBoard's pages with settings.

Its Time Series page reads its settings from the query (`DashboardDeepLinkProvider` in the front end of 2.21), the older
pages, as Custom Scalars, theirs from the fragment (`tf-storage`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

COLOURS = 7
"""Number of colours of both palettes, which then repeat; there is no setting for more."""

MOST_RUNS = 500
"""Most runs that the Time Series page selects by default; with more it selects none."""

TICKED_BY_OLD_PAGES = 40
"""Likewise Scalars and Custom Scalars."""

_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|]")


def pattern_of(runs: Iterable[str]) -> str:
    """Return a JavaScript regular expression for runs, grouped by folder."""
    folders: dict[str, list[str]] = {}
    for run in runs:
        folder, _, name = run.rpartition("/")
        folders.setdefault(folder, []).append(_quoted(name))
    parts = (f"{_quoted(folder)}/({'|'.join(names)})" for folder, names in folders.items())
    return f"^({'|'.join(parts)})$"


def curves_address(
    server: str,
    shown: Sequence[str] | None,
    studies: Sequence[str],
    tags: Sequence[str],
    same_colour: Sequence[Sequence[str]] = (),
) -> str:
    """Return the address of the curves.

    Args:
        server: TensorBoard's address.
        shown: The runs to show; None: all.
        studies: The runs among them of studies as a whole.
        tags: Scalars whose charts are pinned to the top.
        same_colour: Folders whose runs share a colour; empty: each run has its own.
    """
    query = {"smoothing": "0"}
    if shown is not None:
        query["runFilter"] = pattern_of(shown)
    if same_colour:
        query["runColorGroup"] = f"regex:{_colours(same_colour)}"
    if tags:
        pinned = [{"plugin": "scalars", "tag": tag} for tag in tags]
        query["pinnedCards"] = json.dumps(pinned, separators=(",", ":"))
    settings = "&".join(f"{key}={_encoded(value)}" for key, value in query.items())
    ticked = studies if shown is None or len(shown) > TICKED_BY_OLD_PAGES else shown
    return f"{server}?{settings}#timeseries{_fragment(ticked)}"


def studies_address(server: str, studies: Sequence[str]) -> str:
    """Return the address of the page on the studies as such, by their runs."""
    return f"{server}#custom_scalars{_fragment(studies)}"


def _fragment(ticked: Sequence[str]) -> str:
    """Return the settings of the older pages, which stay from one page to the next."""
    return f"&regexInput={_encoded(pattern_of(ticked))}&_smoothingWeight=0"


def _colours(same_colour: Sequence[Sequence[str]]) -> str:
    """Return a regular expression for colours: runs with equal captures share one."""
    if all(len(folders) == 1 for folders in same_colour):
        return "^(.+)/[^/]+$"
    # Each captures nothing in its own group.
    parts = (f"(?:{'|'.join(map(_quoted, folders))})()" for folders in same_colour)
    return f"^(?:{'|'.join(parts)})/[^/]+$"


def _encoded(text: str) -> str:
    return quote(text, safe="/:,")


def _quoted(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)
