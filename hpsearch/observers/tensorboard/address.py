"""URLs of TensorBoard's pages that include settings.

The Time Series page reads its settings from the query (`DashboardDeepLinkProvider` in the front end of 2.21). The older
pages, such as Custom Scalars, read theirs from the fragment (`tf-storage`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

COLOURS = 7
"""Number of colours in each of TensorBoard's two palettes. Then colours repeat; there is no setting for more."""

MOST_RUNS = 500
"""Largest number of runs that the Time Series page selects by default. If there are more, it selects none."""

TICKED_BY_OLD_PAGES = 40
"""The same limit for the Scalars and Custom Scalars pages."""

_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|]")


def pattern_of(runs: Iterable[str]) -> str:
    """Return a JavaScript regular expression that matches these runs, grouped by folder."""
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
    """Return the URL of the Time Series page with these runs and charts.

    Args:
        server: TensorBoard's URL.
        shown: Runs to show; None: all.
        studies: Those of the runs that describe a study as a whole.
        tags: Scalars whose charts are pinned to the top.
        same_colour: Groups of folders. Runs of a group share a colour. If empty, each run has its own.
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
    """Return the URL of the Custom Scalars page with the runs of studies as a whole."""
    return f"{server}#custom_scalars{_fragment(studies)}"


def _fragment(ticked: Sequence[str]) -> str:
    """Return the settings of the older pages, which keep them when the user changes pages."""
    return f"&regexInput={_encoded(pattern_of(ticked))}&_smoothingWeight=0"


def _colours(same_colour: Sequence[Sequence[str]]) -> str:
    """Return a regular expression for colours: runs with equal captures share a colour."""
    if all(len(folders) == 1 for folders in same_colour):
        return "^(.+)/[^/]+$"
    # Each part has its own group, which captures an empty string.
    parts = (f"(?:{'|'.join(map(_quoted, folders))})()" for folders in same_colour)
    return f"^(?:{'|'.join(parts)})/[^/]+$"


def _encoded(text: str) -> str:
    return quote(text, safe="/:,")


def _quoted(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)
