"""The pictures in docs/images are what is drawn."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

import hpsearch
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import LiveStudy
from tests.notebook_pictures import WIDTH, pages, photograph, run
from tests.pictures import IMAGES, pictures
from tests.watch_pictures import watch

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium isn't installed")


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_what_is_drawn_to_the_byte(name):
    svg = pictures()[name]
    assert (IMAGES / name).read_text(encoding="utf-8") == svg, "draw it again: python -m tests.pictures"
    assert svg == pictures()[name]
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def check_watch(svg: str, *strange: str) -> None:
    """See that it is the whole screen of a sweep that runs, with nothing of the machine in it."""
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    words = " ".join(re.sub(r"<[^>]*>|&#160;", " ", svg).split())
    assert re.search(r"running in ann@box:\d+", words)
    assert re.search(r"\d+ of [\d,]+, (\d of )?\d workers? busy", words)
    assert all(head in words for head in ("accuracy", "dropout", "time", "why", "quit"))
    assert not [one for one in ("@font-face", *strange) if one in svg]


def test_the_docs_show_watch_while_a_sweep_runs():
    svg = (IMAGES / "watch.svg").read_text(encoding="utf-8")
    check_watch(svg, "/tmp", "root")
    assert "of&#160;357" in svg
    assert re.search(r"about&#160;[\d.]+&#160;s&#160;left", svg)


def has_begun(study: LiveStudy) -> bool:
    """Whether trials run, and some have shown what they give."""
    runs = study.journaled.counts().get(TrialState.RUNNING, 0) > 0
    return runs and sum(row.score is not None for row in study.rows) >= 4


@pytest.mark.ray
@pytest.mark.exhaustive
def test_watch_is_drawn_of_a_real_sweep_which_is_stopped_then(tmp_path: Path):
    """Of one that lasts for minutes, so that a busy machine can't miss it."""
    check_watch(watch(tmp_path, has_begun, max_iter=729), str(tmp_path))
    assert hpsearch.load(tmp_path / "digits-1").state == "interrupted"


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_notebook_shows_a_real_search_in_its_midst_and_its_study(tmp_path: Path):
    shown = run(tmp_path)
    assert "2 of 2 workers busy" in shown["running"]
    assert "49 trials: 8 complete, 41 stopped. 357 iterations" in shown["study"]
    assert "<svg" in shown["study"]
    assert str(tmp_path) not in "".join(shown.values())


def test_a_notebook_page_has_the_cell_above_what_it_shows():
    texts = {"running": "<p>so far</p>", "study": "<p>in all</p>"}
    made = pages(texts)
    assert "hpsearch.search(" in re.sub(r"<[^>]*>", "", made["running"])
    assert all(made[name].index('class="input"') < made[name].index(text) for name, text in texts.items())


@needs_chromium
def test_pages_are_photographed_whole_and_those_that_are_too_wide_are_refused(tmp_path: Path):
    high = "<div style='height: 2000px'>high</div>"
    asyncio.run(photograph({"running": pages({"running": high, "study": ""})["running"]}, tmp_path))
    with Image.open(tmp_path / "notebook-running.png") as image:
        assert image.width == WIDTH
        assert image.height > 2000
    with pytest.raises(ValueError, match="study: the page is 3000 pixels wide"):
        asyncio.run(photograph({"study": "<div class='output' style='width: 2992px'>wide</div>"}, tmp_path))
