"""Studies made for pages, and what takes a page apart."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.page.brackets import brackets
from hpsearch.page.charts.picture import Area, Box, Dot, Line, Picture, Shape, Words
from hpsearch.page.goals import front
from hpsearch.page.html import Section
from hpsearch.page.networks import networks
from hpsearch.page.params import importance, parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.trials import trials
from hpsearch.page.workers import workers
from tests.hpsearch.support.merged import merged

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Takes a page apart, and sees that its elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if given.get("id"):
            assert given["id"] not in self.names
            self.names.add(str(given["id"]))
        assert not {"src", "onclick", "onload"} & set(given)
        if "href" in given:
            self.links.append(str(given["href"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data


def curve(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        if trial.params["x"] > 0.9:
            raise ValueError("too <large> & 'wide'")
        trial.report({"loss": (trial.params["x"] - 0.37) ** 2 + 1 / iteration, "ms": trial.params["x"]})


def searched(directory: Path, function: Callable[..., Any] = curve, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {"x": hpsearch.Uniform(0, 1), "lr": hpsearch.LogUniform(1e-4, 1), "kind": ["a", "b"], "c": "<&>"},
        "metric": "loss",
        "method": "random",
        "early_terminate": hpsearch.Hyperband(max_iter=9, eta=3),
        "seed": 3,
    }
    given = merged(given, changes)
    return hpsearch.search(function, backend="inline", directory=directory, observers=[], progress=False, **given)


class Drawn(hpsearch.Curves):
    """A simulation whose curves are a function of params and seed."""

    def __init__(self, curve: Callable[[dict[str, Any], int], hpsearch.Curve]) -> None:
        self._curve = curve

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return self._curve(params, seed)


def simulated(curve: Callable[[dict[str, Any], int], hpsearch.Curve], **changes: Any) -> hpsearch.Study:
    """Search in memory, on a clock that doesn't wait; changes are those of a `Sweep`, parameters may be a mapping."""
    given: dict[str, Any] = {
        "name": "simulated",
        "trainable": "package.module:function",
        "parameters": {"x": hpsearch.Uniform(0, 1)},
        "metric": hpsearch.Metric("loss"),
        "method": "random",
        "limits": hpsearch.Limits(max_failures="none"),
        "resources": hpsearch.Resources(1),
        **changes,
    }
    if isinstance(given["parameters"], dict):
        given["parameters"] = hpsearch.Space.from_parameters(given["parameters"])
    sweep = hpsearch.Sweep(**given)
    return hpsearch.search(Drawn(curve), sweep, backend="simulated", directory=":memory:", progress=False)


def beyond(picture: Picture) -> list[Shape]:
    """Return the shapes that aren't within their picture, except letters, whose widths depend on the font."""
    return [
        shape
        for shape in picture.shapes
        if not all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in _corners(shape))
    ]


def _corners(shape: Shape) -> list[tuple[float, float]]:
    match shape:
        case Line(points=points) | Area(points=points):
            return list(points)
        case Box(x=x, y=y, width=width, height=height):
            return [(x, y), (x + width, y + height)]
        case Words(text=text, anchor=anchor, size=size, upright=upright):
            long = 0.5 * size * len(text)
            before = {"start": 0.0, "middle": long / 2, "end": long}[anchor]
            ends = (-before, long - before)
            return [(shape.x, shape.y - end) if upright else (shape.x + end, shape.y) for end in ends]
        case Dot(x=x, y=y):
            return [(x, y)]


def sections(study: hpsearch.Study) -> list[Section]:
    """Return all sections of a study's page."""
    made: list[Section | None] = [front(study), history(study), *curves(study), *networks(study), brackets(study)]
    made += [*importance(study), parallel(study), trials(study), workers(study)]
    return [section for section in made if section is not None]


def drawn(study: hpsearch.Study) -> list[Picture]:
    """Return all pictures of a study's page."""
    return [section.picture for section in sections(study) if section.picture is not None]
