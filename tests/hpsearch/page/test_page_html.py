"""A page as HTML: what scrolls on a phone, and what a notebook shows."""

from __future__ import annotations

import re

import pytest

import hpsearch
from hpsearch.page.charts.picture import Picture
from hpsearch.page.html import Section, SectionTable, fragment, page
from tests.hpsearch.support.pages import Reader, simulated


def written(*sections: Section) -> str:
    html = page("t", [("t", sections)], "f")
    Reader(html)
    return html[html.index("<main") : html.index("</main>")]


@pytest.mark.parametrize(("width", "scrolls"), [(160, False), (300, False), (480, False), (760, True), (1500, True)])
def test_a_picture_scrolls_where_it_would_be_too_small_on_a_phone_and_others_keep_their_size(width, scrolls):
    html = written(Section("s", picture=Picture(width, 100, "a", "b")))
    assert ('class="scroll"' in html) is scrolls
    assert f'style="--width: {width}px"' in html
    style = page("t", [], "f")
    assert "figure svg { width: min(100%, calc(1.3 * var(--width)))" in style
    assert ".scroll svg { min-width: calc(0.72 * var(--width)) }" in style
    assert not re.search(r"\b(LEAST|CELL|WORDS)\b", style)


LONG = "rung 1 (to iteration 3): 12th of 27, top 9 go on"


@pytest.mark.parametrize(
    ("table", "scrolls"),
    [
        (SectionTable(("a", "b"), [("1", "2")]), False),
        (SectionTable(("a", "b", "c", "d", "e"), [("1", "2", "3", "4", "5")]), False),
        (SectionTable(("a", "b", "c", "d", "e", "f"), [("1", "2", "3", "4", "5", "6")]), True),
        (SectionTable(("what", "value"), [("checkpoint", "/a/very/long/path/" * 9)]), False),
        (SectionTable(("trial", "why"), [("1", LONG)]), False),
        (SectionTable(("trial", "iterations", "first", "last", "why"), [("1", "3", "0.1234", "0.2345", LONG)]), True),
        (SectionTable(("trial", "one", "other"), [("1", LONG, LONG)]), True),
    ],
)
def test_a_table_says_that_it_scrolls_where_it_has_no_room_on_a_phone(table, scrolls):
    html = written(Section("s", table=table))
    assert ('class="wide scroll"' in html) is scrolls
    assert ('class="wide"' in html) is not scrolls
    assert html.count('<td class="words">') == sum(cell == LONG for row in table.rows for cell in row)


def test_words_of_tables_and_pictures_are_written_as_they_are():
    wild = "<b>&\"'\x00\udcff\x1b ü"
    html = written(Section(wild, [wild], Picture(9, 9, wild, wild), SectionTable((wild,), [(wild,)], wild), code=wild))
    assert "<b>" not in html
    assert html.count("&lt;b&gt;&amp;") >= 6
    assert html.count("\N{REPLACEMENT CHARACTER}" * 3) >= 6
    assert all(letter.isprintable() or letter == "\n" for letter in html)
    assert "one\n\ttwo" in written(Section("s", code="one\n\ttwo"))


def test_a_notebook_puts_no_cell_to_the_right_whatever_its_own_style_says():
    html = fragment([Section("s", table=SectionTable(("a", "b"), [("1", LONG)]), picture=Picture(9, 9, "a", "b"))])
    Reader(html)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]
    assert re.search(r"\.hpsearch table th, \.hpsearch table td,[^{]*\{ text-align: left", style)
    assert '<div class="hpsearch">' in html
    # More than one class and two elements, as JupyterLab's own rule has one class and one element.
    assert html.index("<style>") < html.index("<table>")


@pytest.mark.parametrize("value", [0.123456789012345678, 1 / 3e5, -2.000000000000001])
def test_a_notebooks_first_line_shows_four_digits(value):
    study = simulated(lambda params, seed: hpsearch.Curve({"loss": [value]}), max_iter=1, run_cap=1)
    html = study._repr_html_()
    first = re.findall(r"<p>(.*?)</p>", html)[0]
    assert first == f"Trial 0 is best, with loss {value:.4g} at iteration 1."
    assert repr(value) not in html


def test_pictures_have_names_of_their_own_on_a_page_whatever_was_written_before_it():
    sections = [Section("s", picture=Picture(9, 9, "a", "b"))] * 2
    html = page("t", [("t", sections), ("u", sections)], "f")
    names = re.findall(r'aria-labelledby="(\S+)-title', html)
    assert names == ["chart-1", "chart-2", "chart-3", "chart-4"]
    assert page("t", [("t", sections), ("u", sections)], "f") == html
    cells = "".join(fragment(sections) for _ in range(2))
    assert len(set(re.findall(r' id="(\S+)-title"', cells))) == 4
