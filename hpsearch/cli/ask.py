"""Commands for trials that run elsewhere: `ask`, `tell` and `give-up`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from hpsearch.cli.json_file import read_json
from hpsearch.config.strict_json import parse_number
from hpsearch.errors import SweepError, TellError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.study import load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.telling import AskedTrial
from hpsearch.run.turns import make_study
from hpsearch.sweep.changes import change_sweep
from hpsearch.sweep.file import load_sweep
from hpsearch.tables.formats import strict_json

__all__ = ["ask", "give_up", "tell"]

NOTHING_NOW = 5
FINISHED = 6


def ask(given: argparse.Namespace) -> int:
    """Print trials to run, a line of JSON for each; make the study where there is none."""
    with _study(given) as study:
        if given.open:
            for given_out in study.open_trials():
                _print(given_out)
            return 0
        for count in range(given.count):
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


def tell(given: argparse.Namespace) -> int:
    """Tell what came of a trial."""
    reports = _reports(given)
    with AskTell(directory=given.dir) as study:
        if given.iteration is not None and not given.ended and isinstance(reports, dict):
            state = study.report(given.trial, reports, iteration=given.iteration, attempt=given.attempt)
        else:
            state = study.tell(
                given.trial,
                reports,
                iteration=given.iteration,
                ended=given.ended,
                failed=given.failed,
                attempt=given.attempt,
            )
    print(f"trial {given.trial} is {state}")
    return 0


def give_up(given: argparse.Namespace) -> int:
    """Say that nothing more will be told of an open trial."""
    with AskTell(directory=given.dir) as study:
        study.give_up(given.trial, attempt=given.attempt)
    print(f"trial {given.trial} will be asked for again")
    return 0


def _study(given: argparse.Namespace) -> AskTell:
    """Open the study that the command line names, by its directory or by a sweep file and a directory."""
    if given.sweep.is_dir():
        if given.dir is not None:
            raise SweepError(f"{given.sweep} is a directory, so --dir {given.dir} must not stand beside it")
        sweep = change_sweep(load(given.sweep).sweep, given.overrides) if given.overrides else None
        return AskTell(sweep, directory=given.sweep)
    if given.dir is None:
        raise SweepError(f"{given.sweep}: name the study's directory with --dir; it is made where there is none")
    sweep, place = load_sweep(given.sweep, given.overrides, runs=False), StudyDirectory(given.dir)
    if not place.exists():
        make_study(place, sweep, given.sweep.read_text(encoding="utf-8"))
    return AskTell(sweep, directory=given.dir)


def _print(trial: AskedTrial) -> None:
    told: dict[str, Any] = {
        "trial": trial.number,
        "attempt": trial.attempt,
        "params": trial.params,
        "seed": trial.seed,
        "start": trial.start,
        "end": trial.end,
    }
    if trial.parent is not None:
        told["parent"] = {"trial": trial.parent.number, "iteration": trial.parent.iteration}
    print(json.dumps(strict_json(told), allow_nan=False), flush=True)


def _reports(given: argparse.Namespace) -> dict[str, Any] | list[dict[str, Any]]:
    """Give what the command line tells: a report, or a list of them."""
    if given.json is None:
        return _metrics(given.metrics) if given.metrics else []
    if given.metrics:
        raise TellError("reports are given as NAME=VALUE or as --json, got both")
    name, reports = read_json(given.json, TellError)
    if isinstance(reports, dict | list):
        return reports
    raise TellError(f"{name}: must be an object, or an array of objects, one per iteration")


def _metrics(words: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals or not name:
            raise TellError(f"a metric must be given as NAME=VALUE, got {word!r}")
        if name in metrics:
            raise TellError(f"a metric must be given once, got {name!r} again")
        try:
            metrics[name] = parse_number(value)
        except ValueError as error:
            raise TellError(f"the metric {name!r} must be a number, but {error}") from None
    return metrics
