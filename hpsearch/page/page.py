"""The page of one study, or of several: its sections in their order, as HTML; and its pictures one by one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.objective import Metric
from hpsearch.page.brackets import brackets
from hpsearch.page.charts import Picture
from hpsearch.page.charts.picture import save_pictures
from hpsearch.page.comparing import beside
from hpsearch.page.goals import front
from hpsearch.page.html import fragment, page
from hpsearch.page.networks import Look, looks_in, networks
from hpsearch.page.overview import again, overview
from hpsearch.page.params import importance, parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.section import Section
from hpsearch.page.trials import failures, strategies, trials
from hpsearch.page.workers import workers
from hpsearch.results.comparison import compare
from hpsearch.results.study import Study

__all__ = [
    "Page",
    "Picture",
    "notebook_html",
    "page_of",
    "plot_brackets",
    "plot_curves",
    "plot_front",
    "plot_history",
    "plot_importance",
    "plot_parameters",
    "plot_workers",
]


class Page:
    """A page on one or several studies."""

    def __init__(self, title: str, parts: Sequence[tuple[str, Sequence[Section]]]) -> None:
        self._title, self._parts = title, parts

    def html(self) -> str:
        """Return one file that opens anywhere."""
        return page(self._title, self._parts, "Made by hpsearch from the study's journal; it needs no connection.")

    def save_pictures(self, directory: Path) -> list[Path]:
        """Write each picture as SVG; return the paths.

        Raises:
            StorageError: They can't be written.
        """
        pictures = {}
        for number, (_, sections) in enumerate(self._parts, 1):
            for section in sections:
                if section.picture is not None:
                    name = "-".join(re.findall(r"\w+", section.title.lower()))
                    pictures[f"{number}-{name}" if len(self._parts) > 1 else name] = section.picture
        return save_pictures(pictures, directory)


def page_of(studies: Sequence[Study]) -> Page:
    """Make the page; several studies with the same objective are compared first.

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
        made = [
            overview(study),
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
            again(study),
        ]
    return [section for section in made if section is not None]


def plot_history(study: Study) -> Picture:
    """Plot every trial's value and the best so far; with several goals the hypervolume of the Pareto front."""
    return _picture(study, [history(study)], "a trial with a value of what decides")


def plot_curves(study: Study, metric: str | None = None) -> Picture:
    """Draw the learning curves of a metric that decides; None: of the first of them."""
    return _picture(study, curves(study, _goal(study, metric)), "a trial with two iterations")


def plot_front(study: Study) -> Picture:
    """Plot the Pareto front of several goals."""
    return _picture(study, [front(study)], "several goals and a trial with values")


def plot_parameters(study: Study) -> Picture:
    """Draw each trial as a line through its parameters."""
    needed = "a metric, two trials that have ended, and parameters that vary"
    return _picture(study, [parallel(study)], needed)


def plot_importance(study: Study, metric: str | None = None) -> Picture:
    """Draw which parameters matter to a metric that decides; None: to the first of them."""
    return _picture(study, importance(study, _goal(study, metric)), "a metric that decides")


def plot_brackets(study: Study) -> Picture:
    """Draw how brackets narrow, and workers per trial grow."""
    return _picture(study, [brackets(study)], "a bracket with two rungs")


def plot_workers(study: Study) -> Picture:
    """Draw what the workers did when."""
    return _picture(study, [workers(study)], "segments that workers of ours ran")


def notebook_html(study: Study) -> str:
    """Return what a notebook shows of a study: an overview, how the search went, and its trials."""
    sections = (overview(study), history(study), trials(study))
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


def _picture(study: Study, sections: Sequence[Section | None], needed: str) -> Picture:
    """Return the picture of the first section.

    Raises:
        HpsearchError: There is no section, or no picture in it.
    """
    section = next(iter(sections), None)
    if section is None:
        raise HpsearchError(f"{study.directory}: this picture needs {needed}, which the study doesn't have")
    if section.picture is None:
        raise HpsearchError(f"{study.directory}: there is no such picture. {' '.join(section.words)}")
    return section.picture
