"""The pictures of a study's page one by one, for notebooks and for files."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.objective import Metric
from hpsearch.page.brackets import brackets
from hpsearch.page.charts import Picture
from hpsearch.page.goals import front
from hpsearch.page.html import fragment
from hpsearch.page.importance import importance
from hpsearch.page.overview import overview
from hpsearch.page.params import parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.section import Section
from hpsearch.page.trials import trials
from hpsearch.page.workers import workers
from hpsearch.results.study import Study

__all__ = [
    "Picture",
    "notebook_html",
    "plot_brackets",
    "plot_curves",
    "plot_front",
    "plot_history",
    "plot_importance",
    "plot_parameters",
    "plot_workers",
]


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
