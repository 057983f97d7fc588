"""The HTML page of one or several studies, and single pictures of a study."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpsearch.config.checks import nearest
from hpsearch.config.masking import MASK
from hpsearch.errors import HpsearchError
from hpsearch.objective import Metric
from hpsearch.page.brackets import brackets
from hpsearch.page.charts.picture import Picture, save_pictures
from hpsearch.page.comparing import beside
from hpsearch.page.goals import front
from hpsearch.page.html import Section, SectionTable, fragment, page
from hpsearch.page.networks import Look, looks_in, networks
from hpsearch.page.params import importance, parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.trials import failures, strategies, trials
from hpsearch.page.workers import workers
from hpsearch.results.comparison import compare
from hpsearch.results.study import Study
from hpsearch.tables.formats import param_cell
from hpsearch.tables.outline import outline
from hpsearch.tables.wording import by_state, counted, duration, front_line, number
from hpsearch.trial import TrialRow, TrialState

__all__ = ["Page", "Picture", "notebook_html", "page_of", "plot"]

_MOST_PACKAGES = 12


class Page:
    """A page on one or several studies."""

    def __init__(self, title: str, parts: Sequence[tuple[str, Sequence[Section]]]) -> None:
        self._title, self._parts = title, parts

    def html(self) -> str:
        """Return the page as one self-contained HTML file."""
        return page(self._title, self._parts, "Made by hpsearch from the study's journal; it needs no connection.")

    def save_pictures(self, directory: Path) -> list[Path]:
        """Write each picture as an SVG file, and return the paths.

        Raises:
            StorageError: The files can't be written.
        """
        pictures = {}
        for index, (_, sections) in enumerate(self._parts, 1):
            for section in sections:
                if section.picture is not None:
                    name = "-".join(re.findall(r"\w+", section.title.lower()))
                    pictures[f"{index}-{name}" if len(self._parts) > 1 else name] = section.picture
        return save_pictures(pictures, directory)


def page_of(studies: Sequence[Study]) -> Page:
    """Create the page. If there are several studies with the same objective, it begins with their comparison.

    Raises:
        HpsearchError: There is no study.
    """
    if not studies:
        raise HpsearchError("report: expected one study at least, got none")
    parts: list[tuple[str, Sequence[Section]]] = []
    names = [study.sweep.name for study in studies]
    if len(studies) > 1:
        compared = compare(*studies)
        if any(not math.isnan(value) for run in compared.runs for value in run.values):
            parts.append(("Side by side", beside(compared)))
    looks = looks_in(studies)
    for study in studies:
        heading = study.sweep.name if names.count(study.sweep.name) == 1 else study.directory.name
        parts.append((heading, _sections(study, looks)))
    title = names[0] if len(studies) == 1 else f"{len(studies)} studies: {', '.join(dict.fromkeys(names))}"
    return Page(title, parts)


def _sections(study: Study, looks: Mapping[str, Look]) -> list[Section]:
    with study.entries_in_memory():
        sections = [
            _overview(study),
            front(study),
            history(study),
            *curves(study),
            *networks(study, looks),
            brackets(study),
            *importance(study),
            parallel(study),
            strategies(study),
            trials(study),
            workers(study),
            failures(study),
            _again(study),
        ]
    return [section for section in sections if section is not None]


_PICTURES: Mapping[str, tuple[Callable[[Study, Sequence[Metric]], Sequence[Section | None]], str]] = {
    "history": (lambda study, _: [history(study)], "a trial with a value of what decides"),
    "curves": (curves, "a trial with two iterations"),
    "front": (lambda study, _: [front(study)], "several goals and a trial with values"),
    "parameters": (lambda study, _: [parallel(study)], "a metric, two ended trials, and parameters that vary"),
    "importance": (importance, "a metric that decides"),
    "brackets": (lambda study, _: [brackets(study)], "a bracket with two rungs"),
    "workers": (lambda study, _: [workers(study)], "segments that workers of ours ran"),
}
"""By name: the function that draws the sections for the given goals, and a text on the data that it requires."""


def plot(study: Study, name: str, metric: str | None = None) -> Picture:
    """Return a picture of a study, for `Study.plot_<name>`.

    Args:
        study: The study.
        name: Name of the picture.
        metric: Metric of the objective; None: the first one.

    Raises:
        HpsearchError: The study lacks data that the picture requires, or the metric isn't part of the objective.
    """
    draw, needed = _PICTURES[name]
    section = next(iter(draw(study, _goal(study, metric))), None)
    if section is None:
        raise HpsearchError(f"{study.directory}: this picture needs {needed}, which the study doesn't have")
    if section.picture is None:
        raise HpsearchError(f"{study.directory}: there is no such picture. {' '.join(section.paragraphs)}")
    return section.picture


def notebook_html(study: Study) -> str:
    """Return a study as HTML for a notebook: an overview, the history of the search, and the trials."""
    sections = (_overview(study), history(study), trials(study))
    return fragment([section for section in sections if section is not None])


def _goal(study: Study, metric: str | None) -> list[Metric]:
    goals = study.sweep.objective.goals
    if metric is None:
        return list(goals[:1])
    names = [goal.name for goal in goals]
    if metric not in names:
        raise HpsearchError(
            f"{study.directory}: expected a metric that decides, got {metric!r}; {nearest(metric, names)}"
        )
    return [goals[names.index(metric)]]


def _overview(study: Study) -> Section:
    """Return the overview: the best trial, the number and cost of trials, and the iterations at which others ended."""
    rows, objective = study.trials, study.sweep.objective
    end = study.course().end
    began = datetime.fromtimestamp(study.created).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    by_someone = study.state in ("paused", "cancelled")
    state = f"{study.state} {study.message}" if by_someone else study.state
    paragraphs = [f"The sweep is to {objective.aim}, by {study.sweep.method}; it is {state}, begun {began}."]
    if study.message and not by_someone:
        paragraphs.append(study.message)
    cost = f"{counted(end.iterations, 'iteration')} in {duration(end.starting + end.seconds)}"
    paragraphs.append(
        f"{counted(len(rows), 'trial')}: {by_state(Counter(row.state for row in rows)) or 'none'}. {cost}."
    )
    paragraphs += _stopped(rows)
    leaders = study.leaders
    if not objective.goals:
        return Section("What was found", ["The sweep names no metric, so no trial is the best.", *paragraphs])
    if not leaders:
        return Section(
            "What was found", [f"No trial has a value{'' if study.state == 'finished' else ' yet'}.", *paragraphs]
        )
    if objective.several:
        return Section("What was found", [f"The front: {front_line(leaders, objective)}.", *paragraphs])
    (best,) = leaders
    goal = objective.goals[0].name
    broken = "" if best.feasible else f" It breaks {' and '.join(objective.broken(best.score))}, as all do."
    value = f"{goal} {number(best.values[0])} at iteration {best.value_iteration}"
    summary = f"Trial {best.number} is best, with {value}.{broken}"
    params = [(name, param_cell(value)) for name, value in outline(best.params, study.sweep.parameters).items()]
    checkpoint = study.checkpoint_path(best)
    if checkpoint is not None:
        params.append(("checkpoint", str(checkpoint)))
    return Section(
        "What was found", [summary, *paragraphs], table=SectionTable(("parameter", "value"), params, "The best trial")
    )


def _stopped(rows: list[TrialRow]) -> list[str]:
    """Describe the iterations at which trials were stopped."""
    counts = Counter(row.iterations for row in rows if row.state is TrialState.STOPPED)
    if not counts:
        return []
    stopped = ", ".join(f"{count:,} at {iterations:,}" for iterations, count in sorted(counts.items()))
    return [
        f"Stopped before their end, by how many iterations they had: {stopped}. Each trial's reason is in the table."
    ]


def _again(study: Study) -> Section:
    """Return the section with the command to run the sweep again, and the sweep's origin."""
    provenance = study.provenance
    paragraphs, rows = [], [("directory", str(study.directory)), ("seed", str(study.sweep.seed))]
    git = provenance.get("git")
    if isinstance(git, dict):
        rows += [(f"git {name}", str(value)) for name, value in git.items() if value not in (None, "", [])]
    elif git:
        rows.append(("git", str(git)))
    rows += [(name, str(provenance[name])) for name in ("python", "platform") if name in provenance]
    rows += [(name, str(version)) for name, version in list(provenance.get("packages", {}).items())[:_MOST_PACKAGES]]
    lines = []
    if folder := provenance.get("directory"):
        lines.append(f"cd {shlex.quote(str(folder))}")
    lines += [f"{name}={shlex.quote(str(value))} \\" for name, value in provenance.get("environment", {}).items()]
    if command := provenance.get("command"):
        lines.append(str(command))
    paragraphs.append(
        "The command as it was given. Equal seeds draw equal trials; hpsearch rerun tries the best ones anew."
    )
    if MASK in str(command):
        paragraphs.append(f"The values of keys that look like secrets are written as {MASK}.")
    if " --dir" in str(command):
        paragraphs.append("Where its directory still holds the study the command goes on with that: leave --dir out.")
    return Section(
        "Run it again",
        paragraphs,
        code="\n".join(lines),
        table=SectionTable(("what", "value"), rows, "Where it came from"),
    )
