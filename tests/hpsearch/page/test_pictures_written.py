"""Pictures as SVG."""

from __future__ import annotations

from xml.etree import ElementTree as Tree

import pytest

from hpsearch.errors import HpsearchError
from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.picture import Area, Box, Dot, Line, Picture, Words, series, svg
from hpsearch.page.charts.scales import Linear

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def picture() -> Picture:
    picture = Picture(200, 100, "a < b & c", "two \x00 words")
    picture.draw(
        Line([(0, 0), (200, 100)], "s0", 2, dashed=True, tip='say "x" <y>'),
        Area([(0, 0), (10, 0), (10, 10)], "s1"),
        Box(20, 20, 60, 40, "bad", "box"),
        Dot(150, 50, "good", 10),
        Dot(150, 20, "good", 5, hollow=True),
        Words(100, 90, "ä < 日本 \x07", "middle"),
        Words(10, 50, "up", "middle", upright=True),
    )
    return picture


def test_svg_is_well_formed_whatever_the_texts_are_and_says_what_it_shows(picture):
    root = Tree.fromstring(svg(picture))
    assert root.findtext(f"{SPACE}title") == "a < b & c"
    assert root.findtext(f"{SPACE}desc") == "two \N{REPLACEMENT CHARACTER} words"
    assert [text.text for text in root.iter(f"{SPACE}text")] == ["ä < 日本 \N{REPLACEMENT CHARACTER}", "up"]
    assert root.findtext(f"{SPACE}polyline/{SPACE}title") == 'say "x" <y>'
    labels = root.get("aria-labelledby", "").split()
    assert {element.get("id") for element in root.iter()} >= set(labels)


def test_several_on_a_page_have_names_of_their_own(picture):
    names = [Tree.fromstring(svg(picture, name)).get("aria-labelledby") for name in ("chart-1", "chart-2")]
    assert names == ["chart-1-title chart-1-told", "chart-2-title chart-2-told"]


def test_shapes_have_their_colours_themselves_and_others_in_the_dark(picture):
    root = Tree.fromstring(svg(picture))
    drawn = {attribute: {element.get(attribute) for element in root.iter()} for attribute in ("fill", "stroke")}
    assert drawn["fill"] >= {"#ffffff", "#bc4c00", "#cf222e", "#1a7f37", "#24292f", "none"}
    assert drawn["stroke"] == {"#0969da", "#1a7f37", None}
    dark = root.findtext(f"{SPACE}style", "").partition("@media (prefers-color-scheme: dark)")[2]
    for attribute, colours in drawn.items():
        for colour in colours - {None, "none"}:
            assert f'.chart [{attribute}="{colour}"] {{ {attribute}: #' in dark


def test_a_picture_is_saved_as_svg_alone(picture, tmp_path):
    picture.save(tmp_path / "a.svg")
    assert Tree.fromstring((tmp_path / "a.svg").read_text(encoding="utf-8")).tag == f"{SPACE}svg"
    with pytest.raises(HpsearchError, match=r"a\.png: a picture is saved as SVG, so its name must end with \.svg"):
        picture.save(tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_twelve_lines_of_a_chart_differ():
    assert len({series(number) for number in range(12)}) == 12


def test_what_is_beyond_an_axis_lies_on_its_edge_and_what_is_not_finite_is_left_out():
    chart = Chart("t", "t", Linear(0, 1), Linear(0, 1), ("x", "y"), (300, 200))
    before = len(chart.picture.shapes)
    chart.line([(0.0, 0.5), (0.5, float("nan")), (0.6, 0.2), (1.0, 9.0)], "s0")
    chart.dot((0.5, float("inf")), "s0")
    chart.band([(0.0, 0.1, float("nan"))], "s0")
    alone, line = chart.picture.shapes[before:]
    assert isinstance(alone, Dot)
    assert isinstance(line, Line)
    assert line.points[-1] == (284.0, 30.0)


def test_a_halo_parts_letters_from_what_lies_below_them():
    def drawn(halo: bool) -> Picture:
        picture = Picture(60, 30, "t", "t")
        picture.draw(Box(0, 0, 60, 30, "bad"), Words(10, 20, "i", halo=halo))
        return picture

    (text,) = Tree.fromstring(svg(drawn(True))).iter(f"{SPACE}text")
    assert (text.get("stroke"), text.get("paint-order")) == ("#ffffff", "stroke")
    (plain,) = Tree.fromstring(svg(drawn(False))).iter(f"{SPACE}text")
    assert plain.get("stroke") is None
