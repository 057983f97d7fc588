"""The pictures in docs/images are what is drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.pictures import IMAGES, pictures


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_what_is_drawn_to_the_byte(name):
    svg = pictures()[name]
    assert (IMAGES / name).read_text(encoding="utf-8") == svg, "draw it again: python -m tests.pictures"
    assert svg == pictures()[name]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
