"""What was measured, and how it is printed."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

Format = Literal["table", "markdown", "json"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured some times; the peer's turns lie between ours."""

    name: str
    unit: str
    ours: Sequence[float]
    target: str
    """What is aimed at, in words: of the ratio where there is a peer, of the quantity itself otherwise."""
    peer_name: str = ""
    peer: Sequence[float] = ()

    @property
    def ratios(self) -> list[float]:
        """Ours by the peer's, turn by turn; empty where there is no peer."""
        return [mine / other for mine, other in zip(self.ours, self.peer, strict=True)] if self.peer else []


def machine() -> str:
    """Say on what kind of machine this runs, and how busy it is with other things."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores ({platform.machine()}), Python {platform.python_version()}, load average {load:.1f}"


def render(figures: Sequence[Figure], form: Format) -> str:
    """Return the figures as a table in plain text or Markdown, or as JSON with every sample."""
    if form == "json":
        return json.dumps({"machine": machine(), "figures": [_record(figure) for figure in figures]}, indent=2)
    table = Table(box=MARKDOWN if form == "markdown" else None, pad_edge=form == "markdown")
    for title in ("figure", "unit", "ours", "peer", "beside"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("ours", "peer") else "left")
    for title in ("min", "median", "max"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("target", no_wrap=True)
    for figure in figures:
        spread = figure.ratios or list(figure.ours)
        table.add_row(
            figure.name,
            figure.unit,
            _number(statistics.median(figure.ours)),
            _number(statistics.median(figure.peer)) if figure.peer else "",
            figure.peer_name,
            *(_number(value) for value in (min(spread), statistics.median(spread), max(spread))),
            figure.target,
        )
    console = Console(width=200, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(table)
    lines = [line.rstrip() for line in console.export_text().splitlines() if line.strip()]
    return "\n".join(lines)


def _record(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "ours": list(figure.ours),
        "peer_name": figure.peer_name,
        "peer": list(figure.peer),
        "ratios": figure.ratios,
        "target": figure.target,
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
