"""Commands before a sweep: `plan` shows what the sweep would run, `check` runs one of its trials several times."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from hpsearch.check.check import check_sweep
from hpsearch.check.text import check_json, check_text
from hpsearch.cli.arguments import add_format, add_sweep, amount, positive
from hpsearch.cli.running import blame, print_notes, with_workers
from hpsearch.config.import_paths import is_table
from hpsearch.errors import TrainableError
from hpsearch.run.plan import make_plan, plan_text, shapes_lines
from hpsearch.sweep.file import SweepFile, load_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.worker.job import trainable_of
from hpsearch.worker.preflight import check_end, missing_here


def plan_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch plan`."""
    add_sweep(command)
    command.add_argument("--workers", type=positive, metavar="N", help="predict for this many workers")
    text = "assumed cost of an iteration, where early_terminate.resource says what rungs end by"
    command.add_argument("--cost-per-iteration", type=amount, metavar="X", help=text)


def plan(args: argparse.Namespace) -> int:
    """Show what a sweep would run."""
    file = SweepFile.read(args.sweep, args.overrides)
    sweep = with_workers(file.sweep(runs=False), args.workers)
    print_notes([*file.notes(), *_missing(sweep, args.sweep)])
    sweep_plan = make_plan(sweep, sweep.resources.workers, args.cost_per_iteration)
    print(plan_text(sweep_plan), end="", flush=True)
    for line in shapes_lines(sweep_plan, (str(Path.cwd()),)):
        print(line)
    if (sweep.trainable or sweep.program or sweep.command) and not is_table(sweep.trainable):
        sets = "".join(f" --set {shlex.quote(override)}" for override in args.overrides)
        command = f"hpsearch check {shlex.quote(str(args.sweep))}{sets}"
        print(f"check        {command} tries a trial, and says what a sweep of it would get wrong")
    return 0


def _missing(sweep: Sweep, source: Path) -> list[str]:
    """Return notes on parts of the trainable that aren't on this machine. They may be on the sweep's machines."""
    if is_table(sweep.trainable) or not (sweep.trainable or sweep.program or sweep.command):
        return []  # the sweep replays recorded results, or is for ask/tell only
    folders = tuple(dict.fromkeys((str(Path.cwd()), str(source.resolve().parent))))
    check_end(sweep, None, folders)
    missing = missing_here(trainable_of(sweep, folders[0]), folders)
    return [] if missing is None else [f"it wouldn't run here: {missing}"]


DIFFERS = 1


def check_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch check`."""
    add_sweep(command)
    add_format(command, "json")


def check(args: argparse.Namespace) -> int:
    """Run a trial of a sweep several times. Return 1 if the runs differ."""
    sweep = load_sweep(args.sweep, args.overrides)
    folders = tuple(dict.fromkeys((str(Path.cwd()), str(args.sweep.resolve().parent))))

    def say(text: str) -> None:
        print(f"running {text}", file=sys.stderr, flush=True)

    try:
        result = check_sweep(sweep, folders, say)
    except TrainableError as error:
        raise TrainableError(f"{blame(args.sweep, sweep, error)}{error}") from error
    print(check_json(result) if args.format == "json" else check_text(result), end="")
    return 0 if result.ok else DIFFERS
