"""A part of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpsearch.page.charts import Picture

__all__ = ["Section", "SectionTable"]


@dataclass(frozen=True)
class SectionTable:
    """Words in rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A title and its content."""

    title: str
    paragraphs: Sequence[str] = ()
    """Paragraphs."""
    picture: Picture | None = None
    table: SectionTable | None = None
    folded: bool = False
    """The table is collapsed, as it has the numbers of the picture."""
    code: str = ""
    """Lines to be copied."""
