"""The pictures of a study's page one by one, for notebooks and for files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError

if TYPE_CHECKING:
    from hpsearch.charts import Picture
    from hpsearch.objective import Metric
    from hpsearch.report.study import Study

__all__ = ["Plots"]


class Plots:
    """What a study draws; a notebook shows each picture, and `save` writes it."""

    def plot_history(self) -> Picture:
        """Draw every trial's value and the best so far; of several goals how the front's hypervolume grew."""
        return self._picture("progress", "history", "a trial with a value of what decides")

    def plot_curves(self, metric: str | None = None) -> Picture:
        """Draw the learning curves, coloured by how far the trial came.

        Args:
            metric: One that decides; None: the first of them.
        """
        return self._picture("progress", "curves", "a trial with two iterations", self._goal(metric))

    def plot_front(self) -> Picture:
        """Draw the front of several goals."""
        return self._picture("goals", "front", "several goals and a trial with values")

    def plot_parameters(self) -> Picture:
        """Draw each trial as a line through its parameters."""
        return self._picture("params", "parallel", "a metric, two trials that have ended, and parameters that vary")

    def plot_importance(self, metric: str | None = None) -> Picture:
        """Draw which parameters matter, by fANOVA.

        Args:
            metric: One that decides; None: the first of them.
        """
        return self._picture("importance", "importance", "a metric that decides", self._goal(metric))

    def plot_brackets(self) -> Picture:
        """Draw how brackets narrow, and workers per trial grow."""
        return self._picture("brackets", "brackets", "a bracket with two rungs")

    def plot_workers(self) -> Picture:
        """Draw what the workers did when."""
        return self._picture("workers", "workers", "segments that workers of ours ran")

    def _repr_html_(self) -> str:
        """Show the study in a notebook."""
        from hpsearch.report.page.html import fragment
        from hpsearch.report.page.overview import overview
        from hpsearch.report.page.progress import history
        from hpsearch.report.page.trials import trials

        study = cast("Study", self)
        made = (overview(study), history(study), trials(study))
        return fragment([section for section in made if section is not None])

    def _goal(self, metric: str | None) -> list[Metric]:
        study = cast("Study", self)
        goals = study.sweep.objective.goals
        if metric is None:
            return list(goals[:1])
        names = [goal.name for goal in goals]
        if metric not in names:
            raise HpsearchError(
                f"{study.directory}: expected a metric that decides, got {metric!r}; {nearest(metric, names)}"
            )
        return [goals[names.index(metric)]]

    def _picture(self, module: str, name: str, needed: str, *given: object) -> Picture:
        study = cast("Study", self)
        made = getattr(import_module(f"hpsearch.report.page.{module}"), name)(study, *given)
        section = next(iter(made), None) if isinstance(made, list) else made
        if section is None:
            raise HpsearchError(f"{study.directory}: this picture needs {needed}, which the study doesn't have")
        if section.picture is None:
            raise HpsearchError(f"{study.directory}: there is no such picture. {' '.join(section.words)}")
        return cast("Picture", section.picture)
