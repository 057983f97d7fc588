"""The page of one study, or of several: its sections in their order, as HTML and as pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpsearch.errors import HpsearchError, StorageError
from hpsearch.page.brackets import brackets
from hpsearch.page.comparing import beside
from hpsearch.page.goals import front
from hpsearch.page.html import page
from hpsearch.page.importance import importance
from hpsearch.page.networks import Look, looks_in, networks
from hpsearch.page.overview import again, overview
from hpsearch.page.params import parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.section import Section
from hpsearch.page.trials import failures, strategies, trials
from hpsearch.page.workers import workers
from hpsearch.results.comparison import compare
from hpsearch.results.study import Study

__all__ = ["Page", "page_of"]


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
        paths = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for number, (_, sections) in enumerate(self._parts, 1):
                for section in sections:
                    if section.picture is not None:
                        name = "-".join(re.findall(r"\w+", section.title.lower()))
                        paths.append(directory / (f"{number}-{name}.svg" if len(self._parts) > 1 else f"{name}.svg"))
                        section.picture.save(paths[-1])
        except OSError as error:
            raise StorageError(f"{directory}: expected a folder that can be written: {error}") from error
        return paths


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
