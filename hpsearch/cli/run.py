"""Commands that run a sweep: `run`, `demo`, `resume`, `retry` for failed trials, `rerun` for the best params."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpsearch.cli.arguments import add_set, add_sweep, number, pasted, positive
from hpsearch.cli.running import (
    add_output,
    add_place,
    check_importable,
    check_runs_here,
    observers_located,
    print_notes,
    run_and_report,
    with_workers,
)
from hpsearch.cli.steer import send_request
from hpsearch.errors import HpsearchError, SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import add_tags, check_tags, write_note
from hpsearch.results.study import load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.launched import check_launched_once
from hpsearch.run.rerunning import plan_rerun
from hpsearch.run.study_run import create_study, warm_start_of
from hpsearch.storage.bucket import is_url
from hpsearch.storage.studies import directory_to_resume
from hpsearch.sweep.file import SweepFile
from hpsearch.sweep.overrides import change_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import shown_path

DEMO = Path(__file__).parent / "templates" / "demo" / "digits.yaml"
"""The sweep of `hpsearch demo`."""


def run_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch run`."""
    add_sweep(command)
    _add_directory(command)
    text = "begin with results that exist: a study's directory, a CSV file, or sqlite:///study.db#name of Optuna's"
    command.add_argument("--from", dest="warm_start", action="append", default=[], metavar="SOURCE", help=text)
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help="put a tag on it; may be repeated")
    command.add_argument("--note", metavar="TEXT", help="write a note on it, such as why it is run")
    add_place(command)
    add_output(command)


def _add_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dir", type=Path, help="the study's directory (default: the next free runs/<name>-<n>)")


def demo_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch demo`."""
    _add_directory(command)
    add_place(command)
    add_output(command)
    command.set_defaults(sweep=DEMO, overrides=[], warm_start=[], tag=[], note=None)


def demo(args: argparse.Namespace) -> int:
    """Run the sweep of the digits that comes with hpsearch, and print where to look."""
    code = run(args)
    if code == 0:
        print(f"sweep file:  {shown_path(args.sweep, Path.cwd())}")
        print("your own:    hpsearch init")
    return code


def run(args: argparse.Namespace) -> int:
    """Run a sweep file in a new directory, or resume the same sweep in its existing directory."""
    check_launched_once("hpsearch run")
    check_tags(args.tag)
    file = SweepFile.read(args.sweep, args.overrides)
    sweep = with_workers(file.sweep(), args.workers)
    print_notes([*file.notes(), *_without_end(sweep), *_from_zero(sweep)])
    study_dir = None if args.dir is None else StudyDirectory(args.dir)
    if study_dir is None or not study_dir.exists():
        with observers_located(args.sweep):
            check_runs_here(args, sweep, (str(args.sweep.resolve().parent),))
        begins_with = warm_start_of(args.warm_start, sweep, None)
        text = args.sweep.read_text(encoding="utf-8")
        study_dir = create_study(sweep, None if study_dir is None else study_dir.path, text, warm_start=begins_with)
    else:
        warm_start_of(args.warm_start, sweep, study_dir)

    def label() -> None:
        if args.tag:
            add_tags(study_dir, args.tag)
        if args.note is not None:
            write_note(study_dir, args.note)

    return run_and_report(study_dir, sweep, args, args.sweep, on_locked=label)


def _without_end(sweep: Sweep) -> list[str]:
    if not sweep.unbounded or sweep.limits.max_time is not None:
        return []
    return ["run_cap isn't given: trials are created until the sweep is stopped, with Ctrl-C or hpsearch stop"]


def _from_zero(sweep: Sweep) -> list[str]:
    """Return a note on the cost of a script without checkpoints, if the sweep pauses and resumes trials."""
    early = sweep.early_terminate
    if early is None or early.capabilities.live or sweep.trainable is not None or sweep.resource is not None:
        return []
    if sweep.program is not None and "checkpoint" in _text_of(sweep.program).lower():
        return []
    return ["a script that saves no checkpoint starts from zero in every segment; hpsearch plan shows what that costs"]


def _text_of(program: str) -> str:
    try:
        return Path(program).read_text("utf-8", "replace")
    except OSError:
        return ""


def resume_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch resume`."""
    text = "the study's directory, or where it is in a bucket: s3://bucket/folder/name"
    command.add_argument("dir", metavar="DIR", help=text)
    text = "of a study in a bucket: the directory to resume it in (default: runs/<name>)"
    command.add_argument("--dir", dest="to", type=Path, metavar="NEW", help=text)
    add_place(command)
    loosened = "run_cap, early_terminate.brackets, limits.*, metric.target, resources.max_workers_per_trial, ..."
    add_set(command, f"extend or loosen it: {loosened}")
    add_output(command)


def resume(args: argparse.Namespace) -> int:
    """Resume a study."""
    return _resume(args, None)


def retry_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch retry`."""
    resume_arguments(command)
    text = "numbers (default: all that failed)"
    command.add_argument("failed", type=number, nargs="*", metavar="TRIAL", help=text)


def retry(args: argparse.Namespace) -> int:
    """Retry failed trials, and resume their study."""
    return _resume(args, args.failed)


def _resume(args: argparse.Namespace, failed: Sequence[int] | None) -> int:
    """Resume a study.

    Args:
        args: The command line's arguments.
        failed: Failed trials to run again; empty: all failed trials; None: none.
    """
    check_launched_once("hpsearch resume" if failed is None else "hpsearch retry")
    if is_url(args.dir):
        study_dir = StudyDirectory(directory_to_resume(args.dir, args.to, print))
    elif args.to is not None:
        raise HpsearchError(
            f"--dir {args.to}: names where to resume a study from a bucket, but {args.dir} is a directory"
        )
    else:
        study_dir = StudyDirectory(Path(args.dir))
    with Journal.read(study_dir.journal) as journal:
        record = journal.study()
    study = load(study_dir.path)
    if study_dir.holder() is not None and not study.is_told and study.state in ("running", "paused"):
        if study.state == "paused" and failed is None:
            return _resume_there(study_dir, args)
        if failed is not None:
            return send_request(
                study_dir, "retry", {"trials": failed}, "they run again there, as soon as workers are free"
            )
    sweep = with_workers(change_sweep(study.sweep, args.overrides), args.workers)
    if study.is_told and failed is not None:
        with AskTell(sweep, directory=study_dir.path) as asking:
            asking.retry(*failed)
        ended = f", once the sweep continues: {asking.reason}" if asking.reason else ""
        print(f"they will be asked for again{ended or f': hpsearch ask {pasted(study_dir.path)}'}")
        return 0
    call = "rerun(..., trainable=..., directory=...)" if "rerun" in record else "search(..., directory=...)"
    check_importable(study_dir.path, sweep, f"the same call of hpsearch.{call}")
    folder = record.get("provenance", {}).get("directory", "")
    source = None if sweep.source is None else Path(folder, sweep.source)
    return run_and_report(study_dir, sweep, args, source, folder, failed=failed)


def _resume_there(study_dir: StudyDirectory, args: argparse.Namespace) -> int:
    """Request that the process that paused a study resumes it."""
    if args.overrides or args.workers is not None:
        raise SweepError(
            f"{study_dir.path}: {study_dir.holder()} has paused this study and resumes it unchanged: leave the "
            f"options out, extend it with `hpsearch extend {pasted(study_dir.path)}`, or stop it first"
        )
    return send_request(
        study_dir, "resume", {}, f"it continues in {study_dir.holder()}; see: hpsearch watch {pasted(study_dir.path)}"
    )


def rerun_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch rerun`."""
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
    """Run a study's best configurations again in a new directory, or resume this rerun in its existing directory."""
    check_launched_once("hpsearch rerun")
    study = load(args.study)
    planned = plan_rerun(study, args.top, args.seeds, args.iterations)
    planned = replace(planned, sweep=with_workers(planned.sweep, args.workers))
    check_importable(study.directory, planned.sweep, f"hpsearch.rerun({str(args.study)!r}, trainable=...)")
    for note in () if args.quiet else planned.notes:
        print(note, flush=True)
    if args.dir is None or not StudyDirectory(args.dir).exists():
        check_runs_here(args, planned.sweep, planned.folders)
    return run_and_report(planned.opened(args.dir), planned.sweep, args, planned.source, str(planned.folder))
