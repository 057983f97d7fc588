"""`hpsearch best`: show a study's best trial or its Pareto front, and save the best trial."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hpsearch.cli.arguments import add_format, add_study, add_weights, directory_of, loaded, target
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.best import BestTrial
from hpsearch.results.study import Study
from hpsearch.tables.formats import indented_json
from hpsearch.tables.layout import screen_of
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.repeats import lead_text
from hpsearch.tables.trials import rows_to_table


def best_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch best`."""
    add_study(command, newest=True, reads=True)
    add_weights(command, "one of several metrics' best: what a unit of each is worth, e.g. accuracy=1,ms=0.01")
    add_format(command, "json")
    text = "write trial.json, with its parameters, and its checkpoint to this folder; or all to one file, NAME.pt"
    command.add_argument("--save", type=target, metavar="FOLDER|FILE.pt", help=text)
    command.add_argument("--force", action="store_true", help="replace what --save wrote there before")


def best(args: argparse.Namespace) -> int:
    """Show the best trial, or the Pareto front."""
    study = loaded(directory_of(args))
    rerun = study.rerun
    best_trials = study.best_trials if args.weights is None else [study.best_by(args.weights)]
    if args.save is not None:
        return _save(study, best_trials, args)
    if args.force:
        raise HpsearchError("--force: replaces what --save wrote before; name its folder or file with --save")
    if args.format == "json":
        records = [_best_record(trial) for trial in best_trials]
        if rerun is not None:
            records[0]["configurations"] = rerun.records()
        if lead := lead_text(study):
            records[0]["lead"] = lead
        record = records if study.sweep.objective.several and args.weights is None else records[0]
        print(indented_json(record))
        return 0
    for number, trial in enumerate(best_trials):
        print("\n" * (number > 0) + _best_text(trial, study), end="")
    if len(best_trials) > 1:
        weights = ",".join(f"{name}=1" for name in best_trials[0].values)
        print(f"\nNone is better than another in all. For one by weights: --weights {shlex.quote(weights)}")
    if rerun is not None:
        print(rerun.text(screen_of(sys.stdout)), end="")
    if study.configurations:
        shown, names = outlined(study.configurations, study.sweep.parameters)
        constants = constants_of(names, study.spaces)
        screen = screen_of(sys.stdout)
        print(rows_to_table(shown, names, study.sweep.objective, constants=constants, screen=screen), end="")
        if lead := lead_text(study):
            print(f"lead        {lead}")
    return 0


def _save(study: Study, best_trials: Sequence[BestTrial], args: argparse.Namespace) -> int:
    from hpsearch.export.saving import save_trial

    if len(best_trials) > 1:
        weights = ",".join(f"{name}=1" for name in best_trials[0].values)
        raise HpsearchError(
            f"--save: one trial must be the best, but the front has {len(best_trials)}: choose one with --weights "
            f"{shlex.quote(weights)}"
        )
    for path in save_trial(study, best_trials[0], args.save, args.force):
        print(path)
    return 0


def _best_record(trial: BestTrial) -> dict[str, Any]:
    values = {"value": trial.value} if len(trial.values) == 1 else {"values": trial.values}
    checkpoint = None if trial.checkpoint is None else str(trial.checkpoint)
    return {"trial": trial.number, **values, "params": trial.params, "checkpoint": checkpoint}


def _best_text(trial: BestTrial, study: Study) -> str:
    missing = "none: none was saved, or it was deleted"
    if StudyDirectory(study.directory).copied_from() is not None:
        missing = f"in the bucket: `hpsearch resume {shlex.quote(study.location)}` downloads it"
    lines = [f"trial       {trial.number}"]
    lines += [f"{name:<11} {value!r}" for name, value in trial.values.items()]
    lines += [f"  {name:<20} {value!r}" for name, value in trial.params.items()]
    lines.append(f"checkpoint  {trial.checkpoint or missing}")
    return "".join(f"{line}\n" for line in lines)
