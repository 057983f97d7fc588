"""What inks stand for, in as many rows as that takes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.page.charts.chart import Chart, Key, legend
from hpsearch.page.charts.picture import SERIES, Words, fitted, width_of
from hpsearch.page.charts.scales import Linear

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=150)
MARKS = ("line", "dashed", "dot", "ring", "box")


@given(st.lists(st.builds(Key, st.sampled_from(SERIES), TEXTS, st.sampled_from(MARKS)), max_size=30))
def test_each_stands_within_the_rows_and_beside_no_other(keys):
    shapes, rows = legend(keys, 64, 744, 16)
    texts = [one for one in shapes if isinstance(one, Words)]
    assert len(texts) == len(keys)
    assert len({one.y for one in texts}) == rows
    ends = [(one.y, one.x, one.x + width_of(one.text, one.size)) for one in texts]
    assert ends == sorted(ends)
    assert all(begin >= 64 and end <= 744 + 1e-6 for _, begin, end in ends)
    for (y, _, end), (other, begin, _) in itertools.pairwise(ends):
        assert y < other or begin - end > 24  # the mark stands between
    for key, text in zip(keys, texts, strict=True):
        assert text.text == key.text or width_of(key.text, 12) > 744 - 64 - 24
    if sum(width_of(key.text, 12) + 40 for key in keys) <= 744 - 64:
        assert rows <= 1


@given(TEXTS, st.integers(1, 600), st.sampled_from([10, 11, 12, 14]))
def test_a_text_that_has_no_room_keeps_both_its_ends(text, room, size):
    short = fitted(text, room, size)
    if width_of(text, size) <= room:
        assert short == text
        return
    begin, _, end = short.partition("…") if "…" not in text else ("", "", "")
    assert text.startswith(begin)
    assert text.endswith(end)
    assert width_of(short, size) <= max(room, width_of("…", size))


def test_names_that_differ_at_an_end_do_so_when_they_are_shortened():
    sides = [f"/data/{'very-' * 30}long/runs/{name}" for name in ("random", "tpe")]
    short = [fitted(side, 400, 12) for side in sides]
    assert short[0] != short[1]
    assert all(one.startswith("/data/") for one in short)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_a_chart_grows_by_its_further_rows_and_all_stands_below_them(count):
    chart = Chart("t", "t", Linear(0, 1), Linear(0, 1), ("x", "y"))
    plain = chart.picture
    chart.line([(0, 0), (1, 1)], "s0")
    for place in range(count):
        chart.key("s0", f"a side with a name {place}")
    picture = chart.picture
    keys = [one for one in picture.shapes if isinstance(one, Words) and one.text.startswith("a side")]
    rows = len({one.y for one in keys})
    deeper = picture.height - plain.height
    assert deeper == 18 * max(rows - 1, 0)
    assert (rows > 1) is (count > 4)
    assert picture.width == plain.width
    names = [
        next(one for one in made.shapes if isinstance(one, Words) and one.text == "x") for made in (plain, picture)
    ]
    assert names[1].y - names[0].y == deeper
    assert max((one.y for one in keys), default=0) < 30 + deeper
    assert chart.picture == picture
