"""Commands that find studies and label them: `list`, `tag` and `note`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import add_tags, labels_of, remove_tags, write_note
from hpsearch.tables.layout import screen_of

__all__ = ["list_studies", "note", "tag"]


def list_studies(given: argparse.Namespace) -> int:
    """List the studies of a folder, the newest first."""
    from hpsearch.results.studies import find_studies
    from hpsearch.tables.summary import by_column, summaries_to_csv, summaries_to_json, summaries_to_table, summarize

    now = time.time()
    with contextlib.redirect_stdout(sys.stderr):  # what a searcher of one's own prints is no part of the list
        known = summarize(list(find_studies(given.folder)), now)
    known = [one for one in known if set(given.tag).issubset(one.labels.tags)]
    known.sort(key=lambda one: one.changed, reverse=True)
    if given.sort is not None:
        known = by_column(known, given.sort)
    if given.format == "csv":
        print(summaries_to_csv(known), end="")
    elif given.format == "json":
        print(summaries_to_json(known))
    elif known:
        print(summaries_to_table(known, Path(), screen_of(sys.stdout)), end="")
    else:
        tagged = f" with the tag {' '.join(given.tag)}" if given.tag else ""
        print(f"no study{tagged} in {given.folder}")
    return 0


def tag(given: argparse.Namespace) -> int:
    """Put tags on a study, or take them off; say which it has."""
    place = StudyDirectory(given.dir)
    change = remove_tags if given.remove else add_tags
    labels = change(place, given.tags) if given.tags else labels_of(place)
    print(" ".join(labels.tags) or "no tags")
    return 0


def note(given: argparse.Namespace) -> int:
    """Write a study's note, or show it."""
    place = StudyDirectory(given.dir)
    labels = labels_of(place) if given.text is None else write_note(place, given.text)
    print(labels.note or "no note")
    return 0
