"""`hpsearch rerun`: the best configurations of a study, run again with other seeds."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from hpsearch.cli.arguments import positive
from hpsearch.cli.running import add_output, add_place, check_importable, check_runs_here, run_and_report, with_workers
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.study import load
from hpsearch.run.launched import check_launched_once
from hpsearch.run.rerunning import plan_rerun

__all__ = ["rerun", "rerun_arguments"]


def rerun_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch rerun` takes."""
    command.add_argument("study", type=Path, metavar="DIR")
    text = "configurations: the params of the best trials (default: %(default)s)"
    command.add_argument("--top", type=positive, default=5, metavar="N", help=text)
    command.add_argument("--seeds", type=positive, default=3, metavar="N", help="runs of each (default: %(default)s)")
    text = "of each run (default: as many as the study gives a trial at most)"
    command.add_argument("--iterations", type=positive, metavar="N", help=text)
    text = "the new study's directory (default: the next free runs/<name>-rerun-<n>)"
    command.add_argument("--dir", type=Path, help=text)
    add_place(command)
    add_output(command)


def rerun(args: argparse.Namespace) -> int:
    """Run the best configurations of a study again, in a new directory, or resume this rerun in its own."""
    check_launched_once("hpsearch rerun")
    study = load(args.study)
    asked = plan_rerun(study, args.top, args.seeds, args.iterations)
    asked = replace(asked, sweep=with_workers(asked.sweep, args.workers))
    check_importable(study.directory, asked.sweep, f"hpsearch.rerun({str(args.study)!r}, trainable=...)")
    for note in () if args.quiet else asked.notes:
        print(note, flush=True)
    if args.dir is None or not StudyDirectory(args.dir).exists():
        check_runs_here(args, asked.sweep, asked.folders)
    return run_and_report(asked.opened(args.dir), asked.sweep, args, asked.source, str(asked.folder))
