"""Pictures as SVG and as PNG."""

from __future__ import annotations

import io
from xml.etree import ElementTree as Tree

import pytest
from PIL import Image

from hpsearch.charts import Chart, Linear, Picture, png, svg
from hpsearch.charts.picture import Area, Box, Dot, Line, Words

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
    root = Tree.fromstring(svg(picture, alone=True))
    assert root.findtext(f"{SPACE}title") == "a < b & c"
    assert root.findtext(f"{SPACE}desc") == "two \N{REPLACEMENT CHARACTER} words"
    assert [text.text for text in root.iter(f"{SPACE}text")] == ["ä < 日本 \N{REPLACEMENT CHARACTER}", "up"]
    assert root.findtext(f"{SPACE}polyline/{SPACE}title") == 'say "x" <y>'
    labels = root.get("aria-labelledby", "").split()
    assert {element.get("id") for element in root.iter()} >= set(labels)


def test_several_on_a_page_have_names_of_their_own(picture):
    names = [Tree.fromstring(svg(picture)).get("aria-labelledby") for _ in range(2)]
    assert names[0] != names[1]


def test_png_shows_the_same(picture):
    image = Image.open(io.BytesIO(png(picture, scale=1)))
    assert image.size == (200, 100)
    pixels = image.convert("RGB").load()
    assert pixels is not None
    assert pixels[50, 40] == (0xCF, 0x22, 0x2E)
    assert pixels[150, 50] == (0x1A, 0x7F, 0x37)
    assert pixels[195, 5] == (255, 255, 255)
    upright = (pixels[x, y] for x in range(14) for y in range(40, 60))
    assert any(pixel != (255, 255, 255) for pixel in upright)


def test_a_picture_is_saved_by_the_name_of_its_file(picture, tmp_path):
    for name in ("a.svg", "a.png"):
        picture.save(tmp_path / name)
    assert Tree.fromstring((tmp_path / "a.svg").read_text()).tag == f"{SPACE}svg"
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (400, 200)


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

    def white(picture: Picture) -> int:
        pixels = Image.open(io.BytesIO(png(picture, scale=1))).convert("RGB").get_flattened_data()
        return sum(pixel == (255, 255, 255) for pixel in pixels)

    assert white(drawn(False)) == 0
    assert white(drawn(True)) > 10
    (text,) = Tree.fromstring(svg(drawn(True), alone=True)).iter(f"{SPACE}text")
    assert (text.get("stroke"), text.get("paint-order")) == ("var(--paper)", "stroke")
    (plain,) = Tree.fromstring(svg(drawn(False), alone=True)).iter(f"{SPACE}text")
    assert plain.get("stroke") is None
