"""What was found, at first sight, and how to run it again."""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import datetime

from hpsearch.report.outline import outline
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study
from hpsearch.report.tables import param_cell
from hpsearch.report.wording import by_state, counted, duration, front_line, number
from hpsearch.trial import TrialRow, TrialState

__all__ = ["again", "overview", "trials"]

_MOST_ROWS = 20
_MOST_PACKAGES = 12


def overview(study: Study) -> Section:
    """Say what is best, how many trials there were, what it cost, and where the others ended."""
    rows, objective = study.trials, study.sweep.objective
    end = study.course().end
    began = datetime.fromtimestamp(study.created).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    words = [f"The sweep is to {objective.aim}, by {study.sweep.method}; it is {study.state}, begun {began}."]
    if study.message:
        words.append(study.message)
    cost = f"{counted(end.iterations, 'iteration')} in {duration(end.seconds)}"
    words.append(f"{counted(len(rows), 'trial')}: {by_state(Counter(row.state for row in rows)) or 'none'}. {cost}.")
    words += _stopped(rows)
    leaders = study.leaders
    if not objective.goals:
        return Section("What was found", ["The sweep names no metric, so no trial is the best.", *words])
    if not leaders:
        return Section("What was found", ["No trial has a value yet.", *words])
    if objective.several:
        return Section("What was found", [f"The front: {front_line(leaders, objective)}.", *words])
    (best,) = leaders
    goal = objective.goals[0].name
    broken = "" if best.feasible else f" It breaks {' and '.join(objective.broken(best.score))}, as all do."
    told = f"Trial {best.number} is best, with {goal} {best.values[0]!r} at iteration {best.value_iteration}.{broken}"
    params = [(name, param_cell(value)) for name, value in outline(best.params, study.sweep.parameters).items()]
    checkpoint = study.checkpoint_path(best)
    if checkpoint is not None:
        params.append(("checkpoint", str(checkpoint)))
    return Section("What was found", [told, *words], table=Table(("parameter", "value"), params, "The best trial"))


def _stopped(rows: list[TrialRow]) -> list[str]:
    """Say at which iterations trials were stopped."""
    counts = Counter(row.iterations for row in rows if row.state is TrialState.STOPPED)
    if not counts:
        return []
    told = ", ".join(f"{count:,} at {iterations:,}" for iterations, count in sorted(counts.items()))
    return [
        f"Stopped before their end, by how many iterations they had: {told}. Each trial's reason stands in the table."
    ]


def trials(study: Study) -> Section | None:
    """Show the best trials, with their parameters and why they ended."""
    objective, space = study.sweep.objective, study.sweep.parameters
    rows = {row.number: row for row in study.trials}
    ranked = [rows[one] for one in objective.rank({number: row.score for number, row in rows.items()})][:_MOST_ROWS]
    if not ranked:
        return None
    points = [outline(row.params, space) for row in ranked]
    names = list(dict.fromkeys(name for point in points for name in point))
    varied = [name for name in names if len({param_cell(point.get(name)) for point in points}) > 1]
    head = ("trial", "state", "iterations", *(goal.name for goal in objective.goals), "why it ended", *varied)
    table = [
        (
            str(row.number),
            str(row.state),
            str(row.iterations),
            *([number(value) for value in row.values] or [""] * len(objective.goals)),
            row.reason if row.failure is None else row.failure.message,
            *(param_cell(point[name]) if name in point else "" for name in varied),
        )
        for row, point in zip(ranked, points, strict=True)
    ]
    constants = [
        f"{name} = {param_cell(points[0][name])}" for name in names if name not in varied and name in points[0]
    ]
    words = [f"The {len(ranked)} best of {len(rows):,}." if len(rows) > len(ranked) else "All trials, the best first."]
    if constants:
        words.append(f"The same in all of these: {', '.join(constants)}.")
    return Section("Trials", words, table=Table(head, table))


def again(study: Study) -> Section:
    """Say how to run the sweep again, and where it came from."""
    told = study.provenance
    words, rows = [], [("directory", str(study.directory)), ("seed", str(study.sweep.seed))]
    git = told.get("git")
    if isinstance(git, dict):
        rows += [(f"git {name}", str(value)) for name, value in git.items() if value not in (None, "", [])]
    elif git:
        rows.append(("git", str(git)))
    rows += [(name, str(told[name])) for name in ("python", "platform") if name in told]
    rows += [(name, str(version)) for name, version in list(told.get("packages", {}).items())[:_MOST_PACKAGES]]
    lines = []
    if folder := told.get("directory"):
        lines.append(f"cd {shlex.quote(str(folder))}")
    lines += [f"{name}={shlex.quote(str(value))} \\" for name, value in told.get("environment", {}).items()]
    if command := told.get("command"):
        lines.append(str(command))
    words.append("The command as it was given. Equal seeds draw equal trials; hpsearch rerun tries the best ones anew.")
    if " --dir" in str(command):
        words.append("Where its directory still holds the study the command goes on with that: leave --dir out.")
    return Section("Run it again", words, code="\n".join(lines), table=Table(("", ""), rows, "Where it came from"))
