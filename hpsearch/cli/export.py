"""`hpsearch export`: write a study for other programs, or replay it to observers."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from hpsearch.cli.arguments import add_study, directory_of, loaded, target
from hpsearch.config.import_paths import installing
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.filesystem import writing
from hpsearch.journal.provenance import process_name
from hpsearch.tables.wording import counted


def export_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch export`."""
    add_study(command, newest=True)
    command.add_argument("--to", type=target, help="where to (default: DIR/export)")
    text = "show the study to this observer, as if it had watched: csv, mlflow, ...; may be repeated"
    command.add_argument("--observer", action="append", default=[], metavar="NAME", help=text)


def export(args: argparse.Namespace) -> int:
    """Write the study for other programs, or replay it to observers."""
    if args.observer:
        return _show(args)
    from hpsearch.export.export import OPTUNA_NAME, PARQUET_NAME, export_study

    study = loaded(directory_of(args))
    directory = args.to or study.directory / "export"
    curves = study.curves() if len(study.sweep.objective.goals) == 1 else {}
    with writing(f"{directory}: expected a folder that can be written to", "Name another with --to."):
        if (
            args.to is None and directory.is_symlink()
        ):  # a study from elsewhere may contain a link: its target must not be written to
            directory.unlink()
        written = export_study(
            study.trials, study.sweep, directory, curves, study.times(), study.identity, study.reports()
        )
    for path in written:
        print(path)
    if (parquet := directory / PARQUET_NAME) not in written:
        needed = f"needs pyarrow, which isn't installed: {installing('parquet')}"
        print(f"note: {parquet} isn't written, as Parquet {needed}", file=sys.stderr)
    if (storage := directory / OPTUNA_NAME) in written:  # a study without a metric has none
        print(f"look at it with: optuna-dashboard {shlex.quote(str(storage))}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from hpsearch.config.observer_names import check_observer, check_once
    from hpsearch.run.observing import show_observer
    from hpsearch.run.study_run import storage_errors

    if args.to is not None:
        raise HpsearchError("--to: must be left out with --observer, which writes where it does while a sweep runs")
    study_dir = StudyDirectory(directory_of(args))
    for name in args.observer:
        check_observer(name, ("--observer",))
    check_once(args.observer, ("--observer",))
    with storage_errors(study_dir), study_dir.running(process_name()):
        for name in args.observer:
            running = show_observer(study_dir, name, (str(Path.cwd()),))
            pending = f"; {counted(running, 'trial')} that haven't ended come later" if running else ""
            print(f"{study_dir.path}: {name} has seen it{pending}")
    return 0
