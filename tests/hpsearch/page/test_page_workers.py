"""The picture of what the workers did: on an axis that people read, and not of the time before all began."""

from __future__ import annotations

import pytest

from hpsearch.events import Event, Failed
from hpsearch.page.charts.picture import Box, Words
from hpsearch.page.html import Section
from hpsearch.page.workers import workers
from hpsearch.trial import Failure
from tests.hpsearch.results.test_told_studies import OPENED, finished, started, told
from tests.hpsearch.support.pages import beyond


def drawn(*events: tuple[float, Event]) -> Section:
    section = workers(told(events))
    assert section is not None
    assert section.picture is not None
    assert beyond(section.picture) == []
    return section


def texts(section: Section) -> list[str]:
    assert section.picture is not None
    return [shape.text for shape in section.picture.shapes if isinstance(shape, Words)]


def boxes(section: Section) -> list[Box]:
    assert section.picture is not None
    return [shape for shape in section.picture.shapes if isinstance(shape, Box) and shape.tip]


@pytest.mark.parametrize(
    ("seconds", "unit", "last"),
    [(40.0, "seconds", "40"), (250.0, "seconds", "250"), (1200.0, "minutes", "20"), (36000.0, "hours", "10")],
)
def test_time_is_told_in_a_unit_of_few_digits(seconds, unit, last):
    section = drawn((0.0, OPENED), (0.0, started(0)), (seconds, finished(0, 1.0, 1.0, 1.0, 1.0)))
    assert f"{unit} since the first process began" in texts(section)
    assert last in texts(section)
    assert max(len(text) for text in texts(section) if text.replace(".", "").isdigit()) <= 4
    (box,) = boxes(section)
    assert box.x == 60.0
    assert box.x + box.width == pytest.approx(740.0, abs=1.0)


def test_the_time_before_the_first_trial_is_drawn_unless_it_is_most_of_all():
    few = drawn((0.0, OPENED), (10.0, started(0)), (50.0, finished(0, 1.0, 1.0, 1.0, 1.0)))
    assert "seconds since the first process began" in texts(few)
    assert boxes(few)[0].x == pytest.approx(60 + 680 / 5)
    most = drawn((0.0, OPENED), (40.0, started(0)), (50.0, finished(0, 1.0, 1.0, 1.0, 1.0)))
    assert "seconds since the first trial began" in texts(most)
    assert boxes(most)[0].x == 60.0
    assert "40 s passed before the first trial began" in most.paragraphs[0]
    assert any(words.startswith("Drawn is what came after that") for words in most.paragraphs)


def test_what_failed_is_red_and_red_is_only_told_of_where_there_is_some():
    failed = Failed(0, 1, Failure("raised", "no", "no"), False, ())
    section = drawn((0.0, OPENED), (0.0, started(0)), (10.0, failed))
    assert [box.ink for box in boxes(section)] == ["bad"]
    assert "failed" in texts(section)
    assert "Red are segments that failed, or were lost." in section.paragraphs
    fine = drawn((0.0, OPENED), (0.0, started(0)), (10.0, finished(0, 1.0, 1.0, 1.0, 1.0)))
    assert not any("Red" in words for words in fine.paragraphs)


def test_segments_that_follow_each_other_are_told_apart():
    section = drawn(
        (0.0, OPENED),
        (0.0, started(0)),
        (10.0, finished(0, 1.0, 1.0, 1.0, 1.0)),
        (10.0, started(1)),
        (20.0, finished(1, 1.0, 1.0, 1.0, 1.0)),
    )
    one, other = sorted(boxes(section), key=lambda box: box.x)
    assert one.x + one.width < other.x


def test_a_trial_that_begins_some_milliseconds_before_anothers_end_is_heard_of_makes_no_worker_more():
    section = drawn(
        (0.0, OPENED),
        (0.0, started(0)),
        (9.999, started(1)),
        (10.0, finished(0, 1.0, 1.0, 1.0, 1.0)),
        (20.0, finished(1, 1.0, 1.0, 1.0, 1.0)),
    )
    assert section.paragraphs[0].startswith("1 worker: idle for 0.0 s of 20 s")
    assert len({box.y for box in boxes(section)}) == 1


def test_trials_that_ran_at_once_have_rows_of_their_own_however_many_workers_were_told():
    section = drawn(
        (0.0, OPENED),
        (0.0, started(0)),
        (5.0, started(1)),
        (10.0, finished(0, 1.0, 1.0, 1.0, 1.0)),
        (20.0, finished(1, 1.0, 1.0, 1.0, 1.0)),
    )
    assert section.paragraphs[0].startswith("2 workers")
    assert len({box.y for box in boxes(section)}) == 2
