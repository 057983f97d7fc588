"""A study's summary, and how to run it again."""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import datetime

from hpsearch.config.masking import MASK
from hpsearch.page.section import Section, SectionTable
from hpsearch.results.study import Study
from hpsearch.tables.formats import param_cell
from hpsearch.tables.outline import outline
from hpsearch.tables.wording import by_state, counted, duration, front_line, number
from hpsearch.trial import TrialRow, TrialState

__all__ = ["again", "overview"]

_MOST_PACKAGES = 12


def overview(study: Study) -> Section:
    """Return the best trial, the number of trials, their cost, and where the others ended."""
    rows, objective = study.trials, study.sweep.objective
    end = study.course().end
    began = datetime.fromtimestamp(study.created).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    by_someone = study.state in ("paused", "cancelled")
    state = f"{study.state} {study.message}" if by_someone else study.state
    words = [f"The sweep is to {objective.aim}, by {study.sweep.method}; it is {state}, begun {began}."]
    if study.message and not by_someone:
        words.append(study.message)
    cost = f"{counted(end.iterations, 'iteration')} in {duration(end.starting + end.seconds)}"
    words.append(f"{counted(len(rows), 'trial')}: {by_state(Counter(row.state for row in rows)) or 'none'}. {cost}.")
    words += _stopped(rows)
    leaders = study.leaders
    if not objective.goals:
        return Section("What was found", ["The sweep names no metric, so no trial is the best.", *words])
    if not leaders:
        return Section(
            "What was found", [f"No trial has a value{'' if study.state == 'finished' else ' yet'}.", *words]
        )
    if objective.several:
        return Section("What was found", [f"The front: {front_line(leaders, objective)}.", *words])
    (best,) = leaders
    goal = objective.goals[0].name
    broken = "" if best.feasible else f" It breaks {' and '.join(objective.broken(best.score))}, as all do."
    value = f"{goal} {number(best.values[0])} at iteration {best.value_iteration}"
    told = f"Trial {best.number} is best, with {value}.{broken}"
    params = [(name, param_cell(value)) for name, value in outline(best.params, study.sweep.parameters).items()]
    checkpoint = study.checkpoint_path(best)
    if checkpoint is not None:
        params.append(("checkpoint", str(checkpoint)))
    return Section(
        "What was found", [told, *words], table=SectionTable(("parameter", "value"), params, "The best trial")
    )


def _stopped(rows: list[TrialRow]) -> list[str]:
    """Describe the iterations at which trials were stopped."""
    counts = Counter(row.iterations for row in rows if row.state is TrialState.STOPPED)
    if not counts:
        return []
    told = ", ".join(f"{count:,} at {iterations:,}" for iterations, count in sorted(counts.items()))
    return [f"Stopped before their end, by how many iterations they had: {told}. Each trial's reason is in the table."]


def again(study: Study) -> Section:
    """Return the command to run the sweep again, and its origin."""
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
    if MASK in str(command):
        words.append(f"The values of keys that look like secrets are written as {MASK}.")
    if " --dir" in str(command):
        words.append("Where its directory still holds the study the command goes on with that: leave --dir out.")
    return Section(
        "Run it again", words, code="\n".join(lines), table=SectionTable(("what", "value"), rows, "Where it came from")
    )
