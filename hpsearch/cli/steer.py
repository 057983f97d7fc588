"""Commands that steer a study. The process that runs the study applies a request; if none does, this process does."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpsearch.cli.arguments import add_study, number, pasted, positive, read_json
from hpsearch.errors import JournalError, SweepError
from hpsearch.events import Changed
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import process_name
from hpsearch.results.study import load
from hpsearch.study.change import fitted
from hpsearch.sweep.document import parse_value
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted, trials_named

_PATIENCE = 10.0
"""Seconds to wait for an answer. If the process that runs the study is running a trial itself, it answers at the
trial's next report."""

_LOOK_SECONDS = 0.1


def pause_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch pause`, `stop` and `cancel`."""
    add_study(command)


stop_arguments = cancel_arguments = pause_arguments


def pause(args: argparse.Namespace) -> int:
    """Pause a study."""
    return _ask_process(args, "pause", "paused: running trials end at their next reports, and nothing new starts")


def stop(args: argparse.Namespace) -> int:
    """Stop a study at the next reports of its trials."""
    return _ask_process(args, "stop", "it ends at the next reports of its trials; hpsearch resume continues it")


def cancel(args: argparse.Namespace) -> int:
    """Stop a study at once."""
    return _ask_process(args, "cancel", "it ends at once; what ran since the last checkpoints runs again on resume")


def extend_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch extend`."""
    add_study(command)
    command.add_argument("--run-cap", type=positive, metavar="N", help="trials in all")
    command.add_argument("--brackets", type=positive, metavar="N", help="brackets in all, of Hyperband and the like")
    text = "train ended trials (default: the best) on to iteration N, from their last checkpoints"
    command.add_argument("--max-iter", type=number, nargs="+", metavar=("N", "TRIAL"), help=text)


def extend(args: argparse.Namespace) -> int:
    """Extend a study."""
    max_iter, *trials = args.max_iter or (None,)
    bounds = {"run_cap": args.run_cap, "brackets": args.brackets, "max_iter": max_iter}
    changes = {name: value for name, value in bounds.items() if value is not None}
    if not changes:
        raise SweepError("extend: by what? Name --run-cap, --brackets or --max-iter")
    return _steer(args, "extend", changes | ({"trials": trials} if trials else {}), f"extended to {amounts(changes)}")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch add`."""
    add_study(command)
    text = "a configuration, its values in YAML; what it leaves out is sampled; may be repeated"
    command.add_argument("--params", action="append", default=[], metavar="NAME=VALUE,...", help=text)
    text = "a configuration, or an array of them (-: standard input)"
    command.add_argument("--json", type=Path, metavar="FILE", help=text)


def add(args: argparse.Namespace) -> int:
    """Add configurations to try."""
    points = _points(args)
    return _steer(
        args, "add", {"points": points}, f"added {counted(len(points), 'configuration')}, which the next trials take"
    )


def change_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch change`."""
    add_study(command)
    text = "parameters.NAME.KEY=VALUE, or parameters.NAME={...}; in YAML, as in a sweep file; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "the study's sweep file with a changed section parameters"
    command.add_argument("--sweep", type=Path, metavar="FILE", help=text)
    text = "the first trial that is from the new space (default: the next one)"
    command.add_argument("--from-trial", type=number, metavar="N", help=text)


def change(args: argparse.Namespace) -> int:
    """Change the search space of a study."""
    from hpsearch.run.ask_tell import steer

    if not args.set and args.sweep is None:
        raise SweepError("change: what? Name --set parameters.NAME.KEY=VALUE, or --sweep FILE")
    before = load(args.dir)
    details: dict[str, Any] = {"set": args.set, "from_trial": args.from_trial}
    if args.sweep is not None:
        details["parameters"] = _changed_space(before.sweep, args.sweep)
    steer(before, "change", details, pasted(before.directory))
    study = load(args.dir)
    changes = [event for event in study.events() if isinstance(event, Changed)]
    *earlier, space = study.spaces
    fitting = sum(fitted(row.params, space, earlier) is not None for row in study.trials)
    print(f"changed from trial {changes[-1].from_trial} on:")
    for line in before.sweep.difference(study.sweep):
        print(f"  {line.replace(' in the study, ', ' before, ').removesuffix(' here')} from then on")
    print(f"{fitting} of {counted(len(study.trials), 'trial')} fit the new space; a method that learns knows these")
    verb = "ask" if study.is_told else "resume"
    print(f"continue with: hpsearch {verb} {pasted(study.directory)}")
    return 0


def _changed_space(sweep: Sweep, path: Path) -> list[dict[str, Any]]:
    """Return the space of a sweep file that differs from a study's sweep only in that."""
    from hpsearch.sweep.file import load_sweep

    requested = load_sweep(path)
    same = replace(sweep, parameters=requested.parameters, read_back=True)
    if differences := same.difference(requested):
        raise SweepError(
            f"{path}: must be the study's sweep with other parameters, as only the space changes; it differs in\n  "
            + "\n  ".join(differences)
            + "\nBounds are raised by hpsearch extend, limits, targets and resources are set by hpsearch resume --set"
        )
    return requested.parameters.to_json()


def prune_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch prune`."""
    add_study(command)
    command.add_argument("trials", type=number, nargs="+", metavar="TRIAL", help="numbers")


def prune(args: argparse.Namespace) -> int:
    """Prune trials."""
    many = counted(len(set(args.trials)), "trial")
    success = f"pruned {many}; what runs of them ends at its next report"
    return _steer(args, "prune", {"trials": args.trials}, success)


def send_request(study_dir: StudyDirectory, verb: str, details: Mapping[str, Any], success: str) -> int:
    """Send a request to the process that runs a study, and print its answer; return 1 if it is refused."""
    with Journal.read(study_dir.journal) as journal:
        number = journal.request(verb, details, process_name())
        deadline = time.monotonic() + _PATIENCE
        while True:
            # In this order: if the process answers and ends between the two calls, the answer is still found.
            holder, answer = study_dir.holder(), journal.answer(number)
            if answer is not None or holder is None or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
    look = f"see: hpsearch history {pasted(study_dir.path)}"
    if answer is not None and not answer.refused:
        print(f"{success}{_which(answer.details)}")
        return 0
    if answer is not None:
        print(f"hpsearch: {holder or 'the process'} refuses to {verb}: {answer.refused}", file=sys.stderr)
        return 1
    if holder is None:
        print(f"hpsearch: the process that ran the study ended before it could {verb}; {look}", file=sys.stderr)
        return 1
    print(f"left for {holder}, which hasn't looked yet: it does at the next report of a trial; {look}")
    return 0


def _ask_process(args: argparse.Namespace, verb: str, success: str) -> int:
    """Send a request to the process that runs a study.

    Raises:
        JournalError: No process runs the study.
    """
    study_dir = StudyDirectory(args.dir)
    with Journal.read(study_dir.journal):
        holder = study_dir.holder()
    study = load(study_dir.path)
    if holder is not None and not study.is_told:
        return send_request(study_dir, verb, {}, success)
    instead = "" if verb in ("stop", "cancel") else f"; continue it with: hpsearch resume {pasted(study_dir.path)}"
    if study.state == "finished":
        instead = ": it is finished"
    elif study.is_told:
        instead = ": its trials run elsewhere, and what is asked for stays open"
    raise JournalError(f"{study_dir.path}: no process runs this study now; there is nothing to {verb}{instead}")


def _steer(args: argparse.Namespace, verb: str, details: Mapping[str, Any], success: str) -> int:
    study_dir = StudyDirectory(args.dir)
    study = load(study_dir.path)
    if study_dir.holder() is not None and not study.is_told:
        return send_request(study_dir, verb, details, success)
    from hpsearch.run.ask_tell import steer

    where = pasted(study_dir.path)
    answered = steer(study, verb, details, where)
    print(f"{success}{_which(answered)}; continue with: hpsearch {'ask' if study.is_told else 'resume'} {where}")
    return 0


def _which(answered: Mapping[str, Any]) -> str:
    """Print what there is to know of trials that train on to stderr; return which they are."""
    if "notes" not in answered:
        return ""
    for note in answered["notes"]:
        print(f"note: {note}", file=sys.stderr)
    return f": {trials_named(answered['trials'])} will train on"


def _points(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the configurations given on the command line."""
    points = [_point(text) for text in args.params]
    if args.json is not None:
        name, read = read_json(args.json, SweepError)
        listed = read if isinstance(read, list) else [read]
        if not all(isinstance(point, dict) for point in listed):
            raise SweepError(f"{name}: must be an object of parameters and their values, or an array of such")
        points += listed
    if not points:
        raise SweepError("add: which configurations? Name --params lr=0.1,hidden=64 or --json FILE")
    try:
        json.dumps(points, allow_nan=False)
    except (TypeError, ValueError):  # YAML has dates, and both have NaN
        raise SweepError(
            f"add: a configuration must hold finite numbers, texts, lists and mappings, got {points}"
        ) from None
    return points


def _point(text: str) -> dict[str, Any]:
    """Parse `lr=0.1,hidden=64`: names and YAML values. A comma inside brackets or quotes belongs to its value."""
    point: dict[str, Any] = {}
    for item in _split(text):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise SweepError(f"--params {text}: must be NAME=VALUE,..., such as lr=0.1,hidden=64, got {item.strip()!r}")
        if name in point:
            raise SweepError(f"--params {text}: must name each parameter once, got {name} again")
        point[name] = parse_value(value, f"--params {name}={value}")
    return point


def _split(text: str) -> Sequence[str]:
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def amounts(values: Mapping[str, Any]) -> str:
    """Format names and values as text."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
