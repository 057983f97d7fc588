"""Sections as one HTML file that needs nothing else: no script, no font, no address."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hpsearch.charts import STYLE, svg
from hpsearch.report.page.section import Section, Table

__all__ = ["fragment", "page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #57606a; --ground: #ffffff; --line: #d8dee4;
  --raised: #f6f8fa; --link: #0969da }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --ground: #0d1117; --line: #30363d;
  --raised: #161b22; --link: #58a6ff } }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word }
a { color: var(--link) } :focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
h1 { font-size: 1.6rem; margin: 0.5rem 0 } h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; list-style: none; padding: 0 }
.skip { position: absolute; left: -100rem } .skip:focus { position: static }
figure { margin: 1rem 0 } figure svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem }
caption { text-align: left; color: var(--soft) } th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } td { min-width: 3rem; max-width: 24rem }
td.words { min-width: 14rem }
pre { overflow-x: auto; background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem;
  font-size: 0.85rem } summary { cursor: pointer; color: var(--link) } footer { color: var(--soft); margin-top: 3rem }
@media (max-width: 40rem) { figure .scroll { overflow-x: auto } figure .scroll svg { min-width: 34rem }
  figure .scroll::before { content: "↔ scroll sideways"; position: sticky; left: 0; color: var(--soft);
    font-size: 0.8rem } }
@media print { nav, .skip { display: none } .wide { overflow: visible } table { font-size: 0.6rem }
  td.words { min-width: 0 } pre { white-space: pre-wrap; overflow-wrap: anywhere } h2 { break-after: avoid } }
"""


def page(title: str, parts: Sequence[tuple[str, Sequence[Section]]], footer: str) -> str:
    """Give the page.

    Args:
        title: Of all of it.
        parts: (heading, sections); a single one needs no heading of its own.
        footer: The last line.
    """
    links, bodies = [], []
    for number, (heading, sections) in enumerate(parts, 1):
        name = f"part-{number}"
        if len(parts) > 1:
            links.append(f'<li><a href="#{name}">{escape(heading)}</a></li>')
            bodies.append(f'<h1 id="{name}">{escape(heading)}</h1>')
        for place, section in enumerate(sections, 1):
            if len(parts) == 1:
                links.append(f'<li><a href="#{name}-{place}">{escape(section.title)}</a></li>')
            bodies.append(_section(section, f"{name}-{place}"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}{STYLE}</style>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header><h1>{escape(title)}</h1></header>
<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>
<main id="content">
{"".join(bodies)}
</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""


def fragment(sections: Sequence[Section]) -> str:
    """Give sections for a notebook's cell."""
    inside = "".join(_section(section, "") for section in sections)
    return f'<style>{STYLE}</style><div class="hpsearch">{inside}</div>'


def _section(section: Section, name: str) -> str:
    parts = [f"<section><h2{_id(name)}>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(words)}</p>" for words in section.words]
    if section.picture is not None:
        parts.append(f'<figure><div class="scroll">{svg(section.picture)}</div></figure>')
    if section.table is not None and section.table.rows:
        table = _table(section.table, f"{section.title}, as a table")
        parts.append(f"<details><summary>As a table</summary>{table}</details>" if section.folded else table)
    if section.code:
        label = escape(f"{section.title}, lines", quote=True)
        parts.append(f'<pre tabindex="0" role="region" aria-label="{label}">{escape(section.code)}</pre>')
    return "\n".join([*parts, "</section>\n"])


def _cell(text: str) -> str:
    """Give a cell; one of several words gets room for them, or a phone would show one below the other."""
    words = ' class="words"' if text.count(" ") >= 3 else ""
    return f"<td{words}>{escape(text)}</td>"


def _table(table: Table, label: str) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in table.rows)
    named = escape(table.caption or label, quote=True)
    inside = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{named}">{inside}</div>'


def _id(name: str) -> str:
    return f' id="{name}"' if name else ""
