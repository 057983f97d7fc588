"""Commands that look at a study; none loads torch or Ray, but for what they show."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpsearch.cli.which_study import directory_of, loaded, trial_of
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.provenance import process_name
from hpsearch.results.best import BestTrial
from hpsearch.results.study import Study
from hpsearch.tables.layout import screen_of
from hpsearch.tables.wording import counted

__all__ = ["best", "doctor", "export", "lineage", "status"]


def status(given: argparse.Namespace) -> int:
    """Show how a study stands."""
    from hpsearch.tables.formats import strict_json
    from hpsearch.tables.status import status_record, status_text

    place = StudyDirectory(directory_of(given))
    study, holder = loaded(place.path), place.holder()
    if given.json:
        print(json.dumps(strict_json(status_record(study, holder)), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(status_text(study, holder), end="")
    return 0


def best(given: argparse.Namespace) -> int:
    """Show the best trial."""
    from hpsearch.tables.formats import strict_json

    study = loaded(directory_of(given))
    rerun = study.rerun
    found = study.best_trials if given.weights is None else [study.best_by(given.weights)]
    if given.save is not None:
        return _save(study, found, given)
    if given.force:
        raise HpsearchError("--force: replaces what --save wrote before; name its folder or file with --save")
    if given.format == "json":
        records = [_best_record(one) for one in found]
        if rerun is not None:
            records[0]["configurations"] = rerun.records()
        record = records if study.sweep.objective.several and given.weights is None else records[0]
        print(json.dumps(strict_json(record), indent=2, allow_nan=False))
        return 0
    for place, one in enumerate(found):
        print("\n" * (place > 0) + _best_text(one), end="")
    if len(found) > 1:
        weights = ",".join(f"{name}=1" for name in found[0].values)
        print(f"\nNone is better than another in all. For one by weights: --weights {shlex.quote(weights)}")
    if rerun is not None:
        print(rerun.text(screen_of(sys.stdout)), end="")
    return 0


def _save(study: Study, found: Sequence[BestTrial], given: argparse.Namespace) -> int:
    from hpsearch.export.saving import save_trial

    if len(found) > 1:
        weights = ",".join(f"{name}=1" for name in found[0].values)
        raise HpsearchError(
            f"--save: one trial must be the best, but the front has {len(found)}: choose one with --weights "
            f"{shlex.quote(weights)}"
        )
    for path in save_trial(study, found[0], given.save, given.force):
        print(path)
    return 0


def _best_record(found: BestTrial) -> dict[str, Any]:
    values = {"value": found.value} if len(found.values) == 1 else {"values": found.values}
    checkpoint = None if found.checkpoint is None else str(found.checkpoint)
    return {"trial": found.number, **values, "params": found.params, "checkpoint": checkpoint}


def _best_text(found: BestTrial) -> str:
    lines = [f"trial       {found.number}"]
    lines += [f"{name:<11} {value!r}" for name, value in found.values.items()]
    lines += [f"  {name:<20} {value!r}" for name, value in found.params.items()]
    lines.append(f"checkpoint  {found.checkpoint or 'none: none was saved, or it was deleted'}")
    return "".join(f"{line}\n" for line in lines)


def lineage(given: argparse.Namespace) -> int:
    """Show what a trial was trained with, its ancestors' params and its own."""
    from hpsearch.tables.lineage import lineage_to_csv, lineage_to_json, lineage_to_table
    from hpsearch.tables.outline import constants_of

    directory, trial = trial_of(given)
    study = loaded(directory)
    stages, names = study.lineage(trial), study.names
    metrics = [goal.name for goal in study.sweep.objective.goals]
    if given.format == "csv":
        text = lineage_to_csv(stages, names, metrics)
    elif given.format == "json":
        text = lineage_to_json(stages, names, metrics) + "\n"
    else:
        constants = constants_of(names, study.sweep.parameters)
        text = lineage_to_table(stages, names, metrics, constants, screen_of(sys.stdout))
    print(text, end="")
    return 0


def export(given: argparse.Namespace) -> int:
    """Write the study for other programs, or show it to observers."""
    if given.observer:
        return _show(given)
    from hpsearch.export.export import OPTUNA_NAME, export_study

    study = loaded(directory_of(given))
    directory = given.to or study.directory / "export"
    curves = study.curves() if len(study.sweep.objective.goals) == 1 else {}
    try:
        if given.to is None and directory.is_symlink():  # what a study from elsewhere links to isn't written to
            directory.unlink()
        written = export_study(
            study.trials, study.sweep, directory, curves, study.times(), study.identity, study.reports()
        )
    except OSError as error:
        raise HpsearchError(
            f"{directory}: expected a folder that can be written to, got: {error.strerror}. Name another with --to."
        ) from error
    for path in written:
        print(path)
    if (storage := directory / OPTUNA_NAME) in written:  # there is none of a study without a metric
        print(f"look at it with: optuna-dashboard {shlex.quote(str(storage))}")
    return 0


def _show(given: argparse.Namespace) -> int:
    from hpsearch.config.observer_names import check_observer, check_once
    from hpsearch.run.observing import show_observer
    from hpsearch.run.study_run import storage_errors

    if given.to is not None:
        raise HpsearchError("--to: must be left out with --observer, which writes where it does while a sweep runs")
    place = StudyDirectory(directory_of(given))
    for name in given.observer:
        check_observer(name, ("--observer",))
    check_once(given.observer, ("--observer",))
    with storage_errors(place), place.running(process_name()):
        for name in given.observer:
            running = show_observer(place, name, (str(Path.cwd()),))
            left = f"; {counted(running, 'trial')} that haven't ended come later" if running else ""
            print(f"{place.path}: {name} has seen it{left}")
    return 0


def doctor(given: argparse.Namespace) -> int:
    """Look at this machine; 1 when something is wrong."""
    from hpsearch.cli.doctor import diagnose, format_findings

    findings = diagnose()
    print(format_findings(findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0
