"""`hpsearch resume` and `hpsearch retry`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpsearch.cli.arguments import add_set, add_study, number
from hpsearch.cli.running import add_output, add_place, check_importable, run_and_report, with_workers
from hpsearch.cli.steer import left
from hpsearch.cli.which_study import pasted
from hpsearch.errors import SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.results.study import load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.launched import check_launched_once
from hpsearch.sweep.overrides import change_sweep

__all__ = ["resume", "resume_arguments", "retry", "retry_arguments"]


def resume_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch resume` takes."""
    add_study(command)
    add_place(command)
    loosened = "run_cap, early_terminate.brackets, limits.*, metric.target, resources.max_workers_per_trial, ..."
    add_set(command, f"extend or loosen it: {loosened}")
    add_output(command)


def resume(args: argparse.Namespace) -> int:
    """Resume a study."""
    return _resume(args, None)


def retry_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch retry` takes."""
    resume_arguments(command)
    text = "numbers (default: all that failed)"
    command.add_argument("failed", type=number, nargs="*", metavar="TRIAL", help=text)


def retry(args: argparse.Namespace) -> int:
    """Retry failed trials, and resume their study."""
    return _resume(args, args.failed)


def _resume(args: argparse.Namespace, failed: Sequence[int] | None) -> int:
    """Resume a study; these failed trials run again, all of them where none is named, and none if None."""
    check_launched_once("hpsearch resume" if failed is None else "hpsearch retry")
    place = StudyDirectory(args.dir)
    with Journal.read(place.journal) as journal:
        record = journal.study()
    study = load(place.path)
    if place.holder() is not None and not study.is_told and study.state in ("running", "paused"):
        if study.state == "paused" and failed is None:
            return _resume_there(place, args)
        if failed is not None:
            return left(place, "retry", {"trials": failed}, "they run again there, as soon as workers are free")
    sweep = with_workers(change_sweep(study.sweep, args.overrides), args.workers)
    if study.is_told and failed is not None:
        with AskTell(sweep, directory=place.path) as asking:
            asking.retry(*failed)
        ended = f", once the sweep goes on: {asking.reason}" if asking.reason else ""
        print(f"they will be asked for again{ended or f': hpsearch ask {pasted(place.path)}'}")
        return 0
    call = "rerun(..., trainable=..., directory=...)" if "rerun" in record else "search(..., directory=...)"
    check_importable(place.path, sweep, f"the same call of hpsearch.{call}")
    folder = record.get("provenance", {}).get("directory", "")
    source = None if sweep.source is None else Path(folder, sweep.source)
    return run_and_report(place, sweep, args, source, folder, failed=failed)


def _resume_there(study_dir: StudyDirectory, args: argparse.Namespace) -> int:
    """Have the process that paused a study resume it."""
    if args.overrides or args.workers is not None:
        raise SweepError(
            f"{study_dir.path}: {study_dir.holder()} has paused this study and goes on with it as it is: leave the "
            f"options out, extend it with `hpsearch extend {pasted(study_dir.path)}`, or stop it first"
        )
    return left(
        study_dir, "resume", {}, f"it goes on in {study_dir.holder()}; see: hpsearch watch {pasted(study_dir.path)}"
    )
