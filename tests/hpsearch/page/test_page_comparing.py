"""Studies side by side on a page: the same as `hpsearch compare` prints, as tables, and one look for an operation."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.page.charts.picture import COLOURS, Area, Ink, Words
from hpsearch.page.comparing import beside
from hpsearch.page.html import Section
from hpsearch.page.networks import looks_in, networks
from hpsearch.page.page import page_of
from hpsearch.results.comparison import compare
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.compared import searched, two
from tests.hpsearch.support.pages import Reader, beyond


class Tables(HTMLParser):
    """Takes the cells of all tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beside")


@pytest.fixture(scope="module")
def seeds(folder: Path) -> list[hpsearch.Study]:
    few = [searched(folder / f"few{seed}", name="few", run_cap=2, seed=seed) for seed in range(6)]
    more = [searched(folder / f"more{seed}", name="more", seed=seed) for seed in range(7)]
    return [*few, *more]


@pytest.mark.exhaustive
@pytest.mark.parametrize("chosen", [slice(0, 13), slice(5, 7), slice(0, 3)], ids=["seeds", "one each", "one side"])
def test_each_line_that_the_command_prints_stands_in_a_table_or_in_words(seeds, chosen, capsys):
    studies = seeds[chosen]
    printed = call(capsys, "compare", *(study.directory for study in studies)).out
    html = page_of(studies).html()
    html = html[html.index('<h1 id="part-1">') : html.index('<h1 id="part-2">')]
    rows = {tuple(cell.strip() for cell in row) for table in Tables(html).tables for row in table}
    text = Reader(html.join(["<main>", "</main>"])).text
    block = ""
    for line in (line for line in printed.splitlines() if set(line.strip()) - {"─"} or not line):
        if not line.startswith("  ") and (
            line.startswith(("best after", "best trial", "better", "sweeps")) or not line
        ):
            block = line
            continue
        cells = tuple(cell.strip() for cell in line.strip().split("  ") if cell.strip())
        if block.startswith("better than") and "left out" not in line:
            side, rest = line.strip().split(", ", 1)
            when, told = rest.split(": ", 1)
            mean = told if told.startswith("unknown") else told.split()[0].rstrip(";")
            row = next(row for row in rows if row[:2] == (side, when))
            assert row[2] == mean
            if "[" in told:
                assert row[3] == told[told.index("[") + 1 : told.index("]")].replace(", ", " to ")
            p_value = told.split("p = ")[1] if "p = " in told else ""
            assert row[5:] == ((p_value,) if "p = " in printed else ())
        elif block.startswith("sweeps"):
            key, both = line.strip().split(": ", 1)
            assert any(
                row[1] == key and f"{row[2]} in few, {row[3]} in {row[0]}" == both for row in rows if len(row) == 4
            )
        elif cells in rows or (line.startswith("   ") and any(row[1:] == cells for row in rows)):
            continue
        else:
            assert line.strip().rstrip(".") in text


def test_of_several_goals_hypervolumes_are_compared_and_no_best_trial(folder):
    metrics = hpsearch.Metric("loss"), hpsearch.Metric("cost")
    changes: dict[str, Any] = {"function": two, "metric": metrics, "max_iter": 1}
    studies = [searched(folder / f"two{cap}", name=f"two{cap}", run_cap=cap, **changes) for cap in (2, 6)]
    compared = compare(*studies)
    sections = beside(compared)
    assert "Best trials" not in [section.title for section in sections]
    assert "hypervolume from loss " in sections[0].paragraphs[0]
    assert sections[0].table is not None
    assert [row for row in sections[0].table.rows if row[0] == "best"] == [
        ("best", *(f"{run.value:.4g}" for run in compared.runs))
    ]


@pytest.mark.exhaustive
def test_many_sides_with_long_names_have_a_key_within_the_picture(folder):
    studies = [
        searched(
            folder / f"side{number}",
            name=f"a_side_with_a_name_that_is_rather_long_as_a_key_{number}",
            run_cap=1 + number,
        )
        for number in range(8)
    ]
    pictures = [section.picture for section in beside(compare(*studies)) if section.picture is not None]
    assert len(pictures) == 3
    for picture in pictures:
        assert beyond(picture) == []
        assert picture.height > 340
        sides = [one.text for one in picture.shapes if isinstance(one, Words) and one.text.startswith("a_side")]
        assert len(set(sides)) == 8


def test_no_title_stands_over_nothing(folder):
    def failing(trial: hpsearch.RunningTrial) -> None:
        trial.report({"loss": 1.0})

    studies = [searched(folder / name, failing, name=name, run_cap=1, max_iter=1) for name in ("one", "other")]
    for section in beside(compare(*studies)):
        assert section.paragraphs or section.picture is not None or (section.table is not None and section.table.rows)


def layered(trial: hpsearch.RunningTrial) -> None:
    for _ in trial.iterations():
        trial.report({"loss": float(len(str(trial.params)))})


def inks(sections: list[Section]) -> dict[str, Ink]:
    """Return the color of each operation, from the key of each picture."""
    found: dict[str, Ink] = {}
    for section in sections:
        assert section.picture is not None
        shapes = section.picture.shapes
        for place, shape in enumerate(shapes):
            if isinstance(shape, Words) and shape.text.startswith("Trial "):
                break
            if isinstance(shape, Words):
                filled = [one.ink for one in shapes[:place] if isinstance(one, Area)][-1]
                assert found.setdefault(shape.text, filled) == filled
    return found


def test_an_operation_has_one_colour_on_a_page_whichever_spaces_have_it(folder):
    spaces: list[list[Any]] = [["conv", "pool"], ["skip", "pool", "conv"], ["norm", "conv"]]
    studies = [
        hpsearch.search(
            layered,
            parameters={"layers": hpsearch.Chain({name: {} for name in names}, min=3, max=5)},
            metric="loss",
            method="random",
            run_cap=8,
            max_iter=1,
            backend="inline",
            directory=folder / f"net{number}",
            observers=[],
            progress=False,
        )
        for number, names in enumerate(spaces)
    ]
    looks = looks_in(studies)
    by_study = [inks(networks(study, looks)) for study in studies]
    every: dict[str, Ink] = {}
    for found in by_study:
        for name, ink in found.items():
            assert every.setdefault(name, ink) == ink
    assert len(set(every.values())) == len(every) == 4
    alone = [inks(networks(study)) for study in studies]
    assert alone[0]["conv"] == alone[1]["skip"] == alone[2]["norm"]
    html = page_of(studies).html()
    parts = [html[html.index(f'<h1 id="part-{number}">') :] for number in (2, 3, 4)]
    for part in parts:
        picture = part[part.index("Best networks") :]
        picture = picture[: picture.index("</svg>")]
        key = picture[: picture.index(">Trial ")]
        assert f'fill="{COLOURS[every["conv"]][0]}"' in key[: key.index(">conv<")].rsplit("<polygon", 1)[1]
