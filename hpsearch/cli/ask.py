"""Commands for trials that run elsewhere: `ask`, `tell` and `give-up`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpsearch.cli.arguments import add_set, add_study, number, positive, read_json
from hpsearch.config.strict_json import parse_number
from hpsearch.errors import SweepError, TellError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.study import load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.telling import AskedTrial
from hpsearch.run.turns import make_study
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.overrides import change_sweep
from hpsearch.tables.formats import strict_json

NOTHING_NOW = 5
FINISHED = 6


def ask_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch ask`."""
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml|DIR", help="a sweep file, or a study's directory")
    command.add_argument("--dir", type=Path, help="the study's directory, with a sweep file; made where there is none")
    command.add_argument("--count", type=positive, default=1, metavar="N", help="most trials to ask for (default: 1)")
    text = "print those that were asked for and not told, and ask for none"
    command.add_argument("--open", action="store_true", help=text)
    add_set(command, "change a key of the sweep, or extend the study's, e.g. --set run_cap=200; may be repeated")


def ask(args: argparse.Namespace) -> int:
    """Print trials to run, one line of JSON for each. Create the study if there is none."""
    with _study(args) as study:
        if args.open:
            for given_out in study.open_trials():
                _print(given_out)
            return 0
        for count in range(args.count):
            if (trial := study.ask()) is not None:
                _print(trial)
            elif count:
                break
            elif study.finished:
                print(f"{study.reason or 'finished'}: there is nothing more to ask for", file=sys.stderr)
                return FINISHED
            else:
                open_now = ", ".join(str(waiting.number) for waiting in study.open_trials())
                print(f"nothing to ask for now: first tell of some of the open trials ({open_now})", file=sys.stderr)
                return NOTHING_NOW
    return 0


def tell_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch tell`."""
    add_study(command)
    _add_open_trial(command)
    command.add_argument("metrics", nargs="*", metavar="NAME=VALUE", help="one report")
    text = "the iteration of the report: one after the other, or the last one alone"
    command.add_argument("--iteration", type=positive, metavar="N", help=text)
    text = "the report, or an array of them, one per iteration (-: standard input)"
    command.add_argument("--json", type=Path, metavar="FILE", help=text)
    command.add_argument("--ended", action="store_true", help="it ended by itself, before the iteration that was asked")
    command.add_argument("--failed", metavar="TEXT", help="it failed, and why")


def tell(args: argparse.Namespace) -> int:
    """Report a trial's result."""
    reports = _reports(args)
    with AskTell(directory=args.dir) as study:
        if args.iteration is not None and not args.ended and isinstance(reports, dict):
            state = study.report(args.trial, reports, iteration=args.iteration, attempt=args.attempt)
        else:
            state = study.tell(
                args.trial,
                reports,
                iteration=args.iteration,
                ended=args.ended,
                failed=args.failed,
                attempt=args.attempt,
            )
    print(f"trial {args.trial} is {state}")
    return 0


def give_up_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch give-up`."""
    add_study(command)
    _add_open_trial(command)


def give_up(args: argparse.Namespace) -> int:
    """Abandon an open trial."""
    with AskTell(directory=args.dir) as study:
        study.give_up(args.trial, attempt=args.attempt)
    print(f"trial {args.trial} will be asked for again")
    return 0


def _study(args: argparse.Namespace) -> AskTell:
    """Open the command line's study, given by its directory or by a sweep file and a directory."""
    if args.sweep.is_dir():
        if args.dir is not None:
            raise SweepError(f"{args.sweep} is a directory, so --dir {args.dir} must not be used with it")
        sweep = change_sweep(load(args.sweep).sweep, args.overrides) if args.overrides else None
        return AskTell(sweep, directory=args.sweep)
    if args.dir is None:
        raise SweepError(f"{args.sweep}: name the study's directory with --dir; it is made where there is none")
    sweep, study_dir = load_sweep(args.sweep, args.overrides, runs=False), StudyDirectory(args.dir)
    if not study_dir.exists():
        make_study(study_dir, sweep, args.sweep.read_text(encoding="utf-8"))
    return AskTell(sweep, directory=args.dir)


def _print(trial: AskedTrial) -> None:
    record: dict[str, Any] = {
        "trial": trial.number,
        "attempt": trial.attempt,
        "params": trial.params,
        "seed": trial.seed,
        "start": trial.start,
        "end": trial.end,
    }
    if trial.parent is not None:
        record["parent"] = {"trial": trial.parent.number, "iteration": trial.parent.iteration}
    print(json.dumps(strict_json(record), allow_nan=False), flush=True)


def _reports(args: argparse.Namespace) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the command line's report, or its list of reports."""
    if args.json is None:
        return _metrics(args.metrics) if args.metrics else []
    if args.metrics:
        raise TellError("reports are given as NAME=VALUE or as --json, got both")
    name, reports = read_json(args.json, TellError)
    if isinstance(reports, dict | list):
        return reports
    raise TellError(f"{name}: must be an object, or an array of objects, one per iteration")


def _metrics(arguments: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for argument in arguments:
        name, equals, value = argument.rpartition("=")
        if not equals or not name:
            raise TellError(f"a metric must be given as NAME=VALUE, got {argument!r}")
        if name in metrics:
            raise TellError(f"a metric must be given once, got {name!r} again")
        try:
            metrics[name] = parse_number(value)
        except ValueError as error:
            raise TellError(f"the metric {name!r} must be a number, but {error}") from None
    return metrics


def _add_open_trial(command: argparse.ArgumentParser) -> None:
    command.add_argument("trial", type=number, metavar="TRIAL", help="its number")
    text = "as `ask` printed it; needed from the trial's second attempt on"
    command.add_argument("--attempt", type=positive, metavar="N", help=text)
