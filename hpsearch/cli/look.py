"""Commands that look at a study, or leave word for it; none loads torch or Ray, but for what they show."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.report.best import BestTrial, weighted
from hpsearch.report.study import Study, load
from hpsearch.run.study_run import write_tensorboard
from hpsearch.study.directory import StudyDirectory
from hpsearch.study.journal import Journal
from hpsearch.study.provenance import process_name

__all__ = ["best", "doctor", "export", "lineage", "status", "stop", "tensorboard", "trials"]


def status(given: argparse.Namespace) -> int:
    """Show how a study stands."""
    from hpsearch.report.status import status_text

    place = StudyDirectory(given.dir)
    print(status_text(_loaded(place.path), place.holder()), end="")
    return 0


def trials(given: argparse.Namespace) -> int:
    """List the trials, or their segments."""
    from hpsearch.report.outline import outlined
    from hpsearch.report.segments import segments_to_csv, segments_to_json, segments_to_table
    from hpsearch.report.tables import rows_to_csv, rows_to_json, rows_to_table

    if given.segments and (given.front or given.weights is not None):
        raise HpsearchError("--segments: lists those of all trials; leave --front and --weights out")
    study = _loaded(given.dir)
    if given.segments:
        render = {"csv": segments_to_csv, "json": segments_to_json, "table": segments_to_table}[given.format]
        text = render(study.segments())
    else:
        objective = study.sweep.objective
        rows = [row for row in study.leaders if row.feasible] if given.front else study.trials
        worth = None
        if given.weights is not None:
            worth = weighted(rows, objective, given.weights)
            numbered = {row.number: row for row in rows}
            rows = [numbered[number] for number in sorted(worth, key=lambda number: (-worth[number], number))]
        if given.format == "csv":
            text = rows_to_csv(rows, study.names, given.times, given.metrics, objective)
        elif given.format == "json":
            text = rows_to_json(rows, study.names, given.times, objective)
        else:
            shown = outlined(rows, study.sweep.parameters)
            text = rows_to_table(*shown, objective, given.times, given.metrics, worth)
    print(text, end="\n" if given.format == "json" else "")
    return 0


def _loaded(directory: Path) -> Study:
    """Load a study; what a searcher or scheduler of one's own prints meanwhile is no part of a CSV."""
    with contextlib.redirect_stdout(sys.stderr):
        return load(directory)


def best(given: argparse.Namespace) -> int:
    """Show the best trial."""
    from hpsearch.report.tables import strict_json

    study = _loaded(given.dir)
    rerun = study.rerun
    found = study.best_trials if given.weights is None else [study.best_by(given.weights)]
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
        print(f"\nNone is better than another in all. For one by weights: --weights {weights}")
    if rerun is not None:
        print(rerun.text(), end="")
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
    from hpsearch.report.lineage import lineage_to_csv, lineage_to_json, lineage_to_table

    study = _loaded(given.dir)
    stages, names = study.lineage(given.trial), study.names
    metrics = [goal.name for goal in study.sweep.objective.goals]
    if given.format == "csv":
        text = lineage_to_csv(stages, names, metrics)
    elif given.format == "json":
        text = lineage_to_json(stages, names, metrics) + "\n"
    else:
        text = lineage_to_table(stages, names, metrics)
    print(text, end="")
    return 0


def export(given: argparse.Namespace) -> int:
    """Write the study for other programs."""
    from hpsearch.report.export import export_study

    study = _loaded(given.dir)
    directory = given.to or study.directory / "export"
    curves = study.curves() if len(study.sweep.objective.goals) == 1 else {}
    try:
        written = export_study(study.trials, study.sweep, directory, curves, study.times(), study.identity)
    except OSError as error:
        raise HpsearchError(
            f"{directory}: expected a folder that can be written to, got: {error.strerror}. Name another with --to."
        ) from error
    for path in written:
        print(path)
    print(f"look at it with: optuna-dashboard {shlex.quote(f'sqlite:///{directory}/optuna.db')}")
    return 0


def stop(given: argparse.Namespace) -> int:
    """Ask the process that runs a study to end."""
    place = StudyDirectory(given.dir)
    with Journal.read(place.journal) as journal:
        holder = place.holder()
        if holder is None or load(place.path).is_told:
            raise JournalError(f"{place.path}: no process runs this study now; there is nothing to stop")
        journal.request("stop", by=process_name())
    print(f"asked {holder} to end at the next reports of its trials")
    return 0


def tensorboard(given: argparse.Namespace) -> int:
    """Become TensorBoard."""
    place = StudyDirectory(given.dir)
    # Who asks and tells writes no event files, so those that there are may lack what was told since.
    if load(place.path).is_told or not place.tensorboard.is_dir():
        write_tensorboard(place)
    words = ["-m", "tensorboard.main", "--logdir", str(place.tensorboard), "--host", given.host]
    os.execv(sys.executable, [sys.executable, *words, "--port", str(given.port)])


def doctor(given: argparse.Namespace) -> int:
    """Look at this machine; 1 when something is wrong."""
    from hpsearch.cli.doctor import diagnose, format_findings

    findings = diagnose()
    print(format_findings(findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0
