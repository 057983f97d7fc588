"""The command that shows all that is known of one trial."""

from __future__ import annotations

import argparse
import json
import sys

from hpsearch.cli.which_study import loaded, pasted, trial_of
from hpsearch.tables.formats import strict_json
from hpsearch.tables.layout import screen_of
from hpsearch.tables.trial_page import page_lines, page_record, trial_page

__all__ = ["one_trial"]


def one_trial(given: argparse.Namespace) -> int:
    """Show a trial: the one that is named, or the best one."""
    directory, trial = trial_of(given)
    study = loaded(directory)
    page = trial_page(study, study.row(trial).number)
    if given.format == "json":
        print(json.dumps(strict_json(page_record(page, given.tail)), indent=2, allow_nan=False))
        return 0
    for line in page_lines(page, pasted(directory), given.tail, screen_of(sys.stdout)):
        print(line)
    return 0
