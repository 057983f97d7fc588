"""The command that compares studies."""

from __future__ import annotations

import argparse
import json

from hpsearch.cli.which_study import each_a_study, loaded
from hpsearch.errors import HpsearchError

__all__ = ["compare"]


def compare(given: argparse.Namespace) -> int:
    """Show studies beside each other."""
    from hpsearch.results.comparison import compare as compared_with
    from hpsearch.tables import comparison as comparison_tables

    compared = compared_with(*map(loaded, each_a_study("compare", given.dirs)))
    if not any(run.course.changes for run in compared.runs):
        raise HpsearchError("expected studies with values, but no trial of any has one yet; see `hpsearch status`")
    if given.format == "csv":
        print(comparison_tables.courses_csv(compared), end="")
    elif given.format == "json":
        print(json.dumps(comparison_tables.comparison_json(compared), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(compared.text(), end="")
    if given.plots is not None:
        paths = compared.plots(given.plots)
        if given.format == "table":
            print("\nplots: " + ", ".join(map(str, paths)))
    return 0
