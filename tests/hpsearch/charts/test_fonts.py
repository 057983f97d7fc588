"""Letters of a PNG's texts, whatever fonts there are."""

from __future__ import annotations

import pytest

from hpsearch.charts import Picture, png
from hpsearch.charts.fonts import font_for, spelled
from hpsearch.charts.picture import Words

LATIN = [chr(code) for code in [*range(0xC0, 0x180), *range(0x1E00, 0x1E98)]]


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("größe", "grosse"),
        ("gro\u0308ße", "grosse"),
        ("naïve Łódź", "naive Lodz"),
        ("Œuvre æ Ø", "OEuvre ae O"),
        ("β₁ Λ µ", "beta1 Lambda mu"),
        ("日本", "??"),
        ("plain - text_1", "plain - text_1"),
    ],
)
def test_a_text_is_spelled_with_the_letters_that_there_are(text, spelling):
    assert spelled(text, str.isascii) == spelling


def test_every_latin_letter_is_spelled_by_ascii_alone():
    spellings = [spelled(letter, str.isascii) for letter in LATIN]
    assert not [letter for letter, one in zip(LATIN, spellings, strict=True) if "?" in one or not one]


def test_letters_that_a_font_has_stay():
    assert spelled("gro\u0308ße", lambda letter: letter != "ß") == "grösse"


def drawn(text: str) -> bytes:
    picture = Picture(60, 30, "t", "t")
    picture.draw(Words(5, 20, text))
    return png(picture, scale=1)


def test_a_png_shows_no_box_in_the_place_of_a_letter():
    missing = drawn("?")
    assert not [letter for letter in "äöüÄßéèñøåłŁžşğőœ" if drawn(letter) == missing]
    assert drawn("\N{CUNEIFORM SIGN A}") == missing  # in none of these fonts


def test_a_font_that_has_all_letters_is_taken_where_there_is_one_and_else_that_of_pillow():
    pytest.importorskip("matplotlib")  # it has one
    font = font_for(["größe łinear"])
    assert all(map(font.has, "größe łinear"))
    assert font_for(["plain"]) is font_for([]) is font_for(["\N{CUNEIFORM SIGN A}"])
    assert not font_for(["plain"]).has("ß")


def test_no_font_has_what_is_no_letter_and_each_has_those_of_ascii():
    for texts in ([], ["größe"], ["日本"]):
        font = font_for(texts)
        assert not font.has("\uffff")
        assert all(map(font.has, "az09 _-/.…"))
