"""The font of a PNG's texts: one that has their letters, or else letters that the font has in their place."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["Font", "font_for", "spelled"]

_FILES = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "Arial Unicode.ttf",
    "Arial.ttf",
    "arial.ttf",
)
"""Fonts of Linux, macOS and Windows that have more letters than the one in Pillow, which has those of ASCII alone."""

_SPELLED = {
    **{"ß": "ss", "ẞ": "SS", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ŋ": "ng", "Ŋ": "Ng"},
    **{"λ": "lambda", "Λ": "Lambda", "\N{MULTIPLICATION SIGN}": "x", "÷": "/", "§": "S"},
    **{"\N{MODIFIER LETTER APOSTROPHE}": "'", "·": "."},
}
"""Letters whose names don't end with letters that people write for them."""


class Font:
    """A font whose letters are known."""

    def __init__(self, load: Callable[[float], FreeTypeFont]) -> None:
        """Take a font.

        Args:
            load: Gives it by its size in pixels.
        """
        self.at = functools.cache(load)
        self._has: dict[str, bool] = {}
        self._box = self._drawn("\uffff")  # no letter, so it is what any font draws for what it lacks

    def has(self, letter: str) -> bool:
        """Whether it has a letter, and doesn't draw the box in its place."""
        if letter not in self._has:
            self._has[letter] = letter.isspace() or self._drawn(letter) != self._box
        return self._has[letter]

    def _drawn(self, letter: str) -> bytes:
        mask = self.at(24.0).getmask(letter)
        return bytes(mask) + repr(mask.size).encode()


def font_for(texts: Iterable[str]) -> Font:
    """Give the first font that has all letters of some texts; where none has, the one that has most of them."""
    letters = {letter for text in texts for letter in _composed(text) if letter.isprintable()}
    best, most = _own(), -1
    for font in _fonts():
        count = sum(map(font.has, letters))
        if count > most:
            best, most = font, count
        if count == len(letters):
            break
    return best


def spelled(text: str, has: Callable[[str], bool]) -> str:
    """Give a text in the letters that a font has: `größe` as `grosse` where it has those of ASCII alone.

    Args:
        text: Any.
        has: Whether the font has a letter.
    """
    return "".join(letter if has(letter) else _spelled(letter, has) for letter in _composed(text))


def _composed(text: str) -> str:
    """Give letters and their accents as one, as fonts have them."""
    return unicodedata.normalize("NFC", text)


def _spelled(letter: str, has: Callable[[str], bool]) -> str:
    """Give letters in the place of one: without its accents, or its name; `?` where there are none."""
    parts = [part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part)]
    if parts != [letter]:
        return "".join(part if has(part) else _spelled(part, has) for part in parts)
    words = unicodedata.name(letter, "").split(" WITH ")[0].split()  # LATIN SMALL LETTER L WITH STROKE
    name = words[-1] if words and words[0] in ("LATIN", "GREEK", "CYRILLIC") else "?"
    is_pair = words[:1] == ["LATIN"] and len(name) <= 2
    named = name.lower() if "CAPITAL" not in words else name if is_pair else name.capitalize()
    found = _SPELLED.get(letter, named)
    return found if all(map(has, found)) else "?"


def _fonts() -> Iterable[Font]:
    yield _own()
    for name in _FILES:
        if (font := _file(name)) is not None:
            yield font


@functools.cache
def _own() -> Font:
    from PIL import ImageFont

    def load(size: float) -> FreeTypeFont:
        font = ImageFont.load_default(size)
        assert isinstance(font, ImageFont.FreeTypeFont)
        return font

    return Font(load)


@functools.cache
def _file(name: str) -> Font | None:
    """Give a font of this machine, or of Matplotlib where that is there."""
    from PIL import ImageFont

    for place in (name, *_of_matplotlib(name)):
        try:
            return Font(functools.partial(ImageFont.truetype, place))
        except OSError:
            continue
    return None


def _of_matplotlib(name: str) -> list[str]:
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        return []
    return [str(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / name)]
