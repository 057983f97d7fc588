"""The pictures of a study's page one by one, for notebooks and for files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from hpsearch.errors import HpsearchError

if TYPE_CHECKING:
    from hpsearch.charts import Picture
    from hpsearch.report.study import Study

__all__ = ["Plots"]


class Plots:
    """What a study draws; a notebook shows each picture, and `save` writes it."""

    def plot_history(self) -> Picture:
        """Draw every trial's value, and the best so far."""
        return self._picture("progress", "history", "one goal and a trial with a value")

    def plot_curves(self) -> Picture:
        """Draw the learning curves, coloured by how far the trial came."""
        return self._picture("progress", "curves", "one goal and a trial with two iterations")

    def plot_front(self) -> Picture:
        """Draw the front of several goals."""
        return self._picture("params", "front", "several goals and a trial with values")

    def plot_parameters(self) -> Picture:
        """Draw each trial as a line through its parameters."""
        return self._picture("params", "parallel", "two trials with values, and parameters that vary")

    def plot_importance(self) -> Picture:
        """Draw which parameters matter, by fANOVA."""
        return self._picture("params", "importance", "one goal and 20 trials with values at one iteration")

    def plot_brackets(self) -> Picture:
        """Draw how brackets narrow."""
        return self._picture("workers", "brackets", "a bracket with two rungs")

    def plot_workers(self) -> Picture:
        """Draw what the workers did when."""
        return self._picture("workers", "workers", "segments that workers of ours ran")

    def _repr_html_(self) -> str:
        """Show the study in a notebook."""
        from hpsearch.report.page.html import fragment
        from hpsearch.report.page.overview import overview, trials
        from hpsearch.report.page.progress import history

        study = cast("Study", self)
        made = (overview(study), history(study), trials(study))
        return fragment([section for section in made if section is not None])

    def _picture(self, module: str, name: str, needed: str) -> Picture:
        study = cast("Study", self)
        section = getattr(import_module(f"hpsearch.report.page.{module}"), name)(study)
        if section is None:
            raise HpsearchError(f"{study.directory}: this picture needs {needed}, which the study doesn't have")
        return cast("Picture", section.picture)
