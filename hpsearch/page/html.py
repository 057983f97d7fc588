"""Sections as one self-contained HTML file, without scripts, fonts or links to other files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from hpsearch.page.charts.picture import STYLE, Picture, svg

_PHONE = 358.0
"""Width of a page on a phone without margins, in pixels."""
_LEAST = 0.72
"""Smallest scale of a picture. On a narrower screen the picture scrolls."""
_LETTER, _CELL, _WORDS, _PADDING = 7.5, 48.0, 224.0, 13.0
"""Widths in a table, in pixels: of a letter, of the narrowest cell, of a cell with many words, and of the padding."""
_LONG = 30
"""Number of characters from which a cell gets a minimum width."""
_MOST_LETTERS = 14
"""Longest word that isn't broken, in characters."""

PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #57606a; --ground: #ffffff; --line: #d8dee4;
  --raised: #f6f8fa; --more: #aeb6bf; --link: #0969da }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --ground: #0d1117; --line: #30363d;
  --raised: #161b22; --more: #4a535d; --link: #58a6ff } }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word }
a { color: var(--link) } :focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
h1 { font-size: 1.6rem; margin: 0.5rem 0 }
main h1 { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: 1rem }
main h1:first-child { border-top: 0; margin-top: 0; padding-top: 0 }
h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; list-style: none; padding: 0 }
.skip { position: absolute; left: -100rem } .skip:focus { position: static }
figure { margin: 1rem 0 } figure svg { width: min(100%, calc(1.3 * var(--width))); height: auto; display: block;
  border: 1px solid var(--line); border-radius: 6px } .scroll { overflow-x: auto }
.scroll svg { min-width: calc(LEAST * var(--width)) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem }
caption { text-align: left; color: var(--soft) } th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } td { min-width: CELL; max-width: 24rem }
tbody th { font-weight: normal } td.words { min-width: WORDS } .wide:not(.scroll) td { overflow-wrap: anywhere }
.scroll td.short { white-space: nowrap } .scroll tbody th { position: sticky; left: 0; background: var(--ground) }
.wide { background: linear-gradient(to left, var(--ground) 2rem, transparent) right / 4rem 100% no-repeat local,
  linear-gradient(to left, var(--more), transparent) right / 1rem 100% no-repeat scroll }
pre { overflow-x: auto; background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem;
  font-size: 0.85rem } summary { cursor: pointer; color: var(--link) } footer { color: var(--soft); margin-top: 3rem }
@media (max-width: 36rem) { .scroll::before { content: "↔ scroll sideways"; position: sticky; left: 0;
  color: var(--soft); font-size: 0.8rem } }
@media print { nav, .skip { display: none } .wide { overflow: visible } table { font-size: 0.55rem }
  th, td { padding-right: 0.4rem } td, .scroll svg { min-width: 0 } td.words { min-width: 7rem }
  .scroll td.short { white-space: normal } pre { white-space: pre-wrap; overflow-wrap: anywhere }
  h2 { break-after: avoid } }
"""
for _name, _value in {"LEAST": f"{_LEAST}", "CELL": f"{_CELL:.0f}px", "WORDS": f"{_WORDS:.0f}px"}.items():
    PAGE_STYLE = PAGE_STYLE.replace(_name, _value)

_FRAGMENT = """
.hpsearch table th, .hpsearch table td, .hpsearch caption { text-align: left; vertical-align: top }
.hpsearch .wide { overflow-x: auto } .hpsearch svg { width: min(100%, var(--width)); height: auto }
.hpsearch td.words { min-width: 14em; white-space: normal }
"""
"""Styles that a notebook must not override, as some notebooks align table cells to the right."""

_FRAGMENTS = itertools.count(1)
"""Numbers of fragments, unique in this process, as all cells of a notebook are on one page."""


def page(title: str, parts: Sequence[tuple[str, Sequence[Section]]], footer: str) -> str:
    """Return a page as HTML.

    Args:
        title: Title of the page.
        parts: (heading, sections) pairs. A single part needs no heading.
        footer: Last line of the page.
    """
    links, bodies, charts = [], [], chart_names("chart")
    for number, (heading, sections) in enumerate(parts, 1):
        name = f"part-{number}"
        if len(parts) > 1:
            links.append(f'<li><a href="#{name}">{escaped(heading)}</a></li>')
            bodies.append(f'<h1 id="{name}">{escaped(heading)}</h1>')
        for index, section in enumerate(sections, 1):
            if len(parts) == 1:
                links.append(f'<li><a href="#{name}-{index}">{escaped(section.title)}</a></li>')
            bodies.append(section_html(section, f"{name}-{index}", charts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{PAGE_STYLE}{STYLE}</style>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header><h1>{escaped(title)}</h1></header>
<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>
<main id="content">
{"".join(bodies)}
</main>
<footer>{escaped(footer)}</footer>
</body>
</html>
"""


def fragment(sections: Sequence[Section]) -> str:
    """Return sections as HTML for a notebook's cell."""
    charts = chart_names(f"chart-{next(_FRAGMENTS)}")
    inside = "".join(section_html(section, "", charts) for section in sections)
    return f'<style>{STYLE}{_FRAGMENT}</style><div class="hpsearch">{inside}</div>'


def chart_names(prefix: str) -> Iterator[str]:
    """Return an iterator over unique names for the pictures of one page."""
    return (f"{prefix}-{number}" for number in itertools.count(1))


def section_html(section: Section, name: str, charts: Iterator[str], values: bool = False) -> str:
    """Return a section as HTML.

    Args:
        section: The section.
        name: Name of its heading; empty: none.
        charts: Unique names for pictures.
        values: Whether lines of pictures contain their values, for a script of the page.
    """
    anchor = f' id="{name}"' if name else ""
    parts = [f"<section><h2{anchor}>{escaped(section.title)}</h2>"]
    parts += [f"<p>{escaped(paragraph)}</p>" for paragraph in section.paragraphs]
    if section.picture is not None:
        drawn = svg(section.picture, next(charts), values)
        if section.picture.width * _LEAST > _PHONE:
            drawn = _region("scroll", f"{section.title}, picture", drawn)
        parts.append(f"<figure>{drawn}</figure>")
    if section.table is not None and section.table.rows:
        table = table_html(section.table, f"{section.title}, as a table")
        parts.append(f"<details><summary>As a table</summary>{table}</details>" if section.folded else table)
    if section.code:
        label = escaped(f"{section.title}, lines")
        parts.append(f'<pre tabindex="0" role="region" aria-label="{label}">{escaped(section.code)}</pre>')
    return "\n".join([*parts, "</section>\n"])


def _cell(text: str) -> str:
    """Return a table cell. Long texts get a minimum width, so phones don't wrap each word. Short texts don't wrap."""
    kind = ' class="words"' if _is_long(text) else ' class="short"' if " " in text else ""
    return f"<td{kind}>{escaped(text)}</td>"


def table_html(table: SectionTable, label: str) -> str:
    """Return a table as HTML, in a region with a label that can be scrolled."""
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.head)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>{"".join(map(_cell, cells))}</tr>\n' for first, *cells in table.rows
    )
    inside = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return _region("wide scroll" if _least_width(table) > _PHONE else "wide", table.caption or label, inside)


def _is_long(text: str) -> bool:
    return len(text) >= _LONG and " " in text


def _least_width(table: SectionTable) -> float:
    """Estimate a table's width in pixels, if only long words are broken."""
    return sum(
        _PADDING + max(_WORDS if _is_long(cell) else max(_CELL, _LETTER * _longest_word(cell)) for cell in column)
        for column in zip(table.head, *table.rows, strict=True)
    )


def _longest_word(text: str) -> int:
    return min(max(map(len, text.split()), default=0), _MOST_LETTERS)


def _region(kind: str, label: str, inside: str) -> str:
    """Return an element that may be wider than the screen. It can be focused and scrolled with the keyboard."""
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escaped(label)}">{inside}</div>'


def escaped(text: str) -> str:
    """Escape a text for an element or an attribute, and replace control characters and lone surrogates."""
    letters = (letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return escape("".join(letters))


@dataclass(frozen=True)
class SectionTable:
    """A table of texts."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a page: a title and its content."""

    title: str
    paragraphs: Sequence[str] = ()
    """Paragraphs."""
    picture: Picture | None = None
    table: SectionTable | None = None
    folded: bool = False
    """Whether the table is collapsed, as it has the same numbers as the picture."""
    code: str = ""
    """Lines for the user to copy."""
