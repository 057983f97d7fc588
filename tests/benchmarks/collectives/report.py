"""What came of a run: medians, rates and ratios, as a table of text or Markdown, or as JSON with every sample.

A time is the median of a turn's repetitions, and then of the rounds. A ratio is taken within a round, of turns that lay
side by side, so that both met the same neighbours; of the ratios of all rounds min, median and max are shown; the
efficiencies of `--model` are ratios of short turns, several in each round. In the row of gloo, a ratio of 5 says that
gloo took 5 times as long. For the rates see `hpsearch_comm.timeline.trace_event`.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from statistics import median

import torch

from hpsearch_comm.timeline.trace_event import algorithm_bandwidth, bus_bandwidth
from tests.benchmarks.collectives.bare_memory import BARE
from tests.benchmarks.collectives.block import MeasuredTurn
from tests.benchmarks.collectives.launch import Outcome
from tests.benchmarks.collectives.sizes import parse_sizes
from tests.benchmarks.collectives.training import NO_AVERAGING

_LARGE = 1 << 20
"""From here on bandwidth counts rather than latency; the means are given for these sizes too."""


def render(outcome: Outcome, form: str) -> str:
    """Return the report.

    Args:
        outcome: Of a run.
        form: "table", "markdown" or "json".
    """
    if form == "json":
        return json.dumps(_record(outcome), indent=2)
    header, rows = _TABLES[outcome.plan.kind](outcome)
    lines = [table(header, rows, markdown=form == "markdown"), ""]
    lines += [*summary(outcome), f"{machine()}; {outcome.plan.ranks} ranks, {outcome.plan.rounds} rounds"]
    return "\n".join(lines)


def machine() -> str:
    """Say on what kind of machine this runs, and how busy it is with other things."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores ({platform.machine()}), torch {torch.__version__}, load average {load:.1f}"


def ratios(turns: Sequence[MeasuredTurn], subject: str, above: str, below: str) -> list[float]:
    """Return the time of one contender divided by that of another, by round."""
    times = {(turn.contender, turn.round): median(turn.seconds) for turn in turns if turn.subject == subject}
    rounds = sorted({number for name, number in times if name == above and (below, number) in times})
    return [times[above, number] / times[below, number] for number in rounds]


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of ratios."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def summary(outcome: Outcome) -> list[str]:
    """Return the summary below a table: geometric means over sizes."""
    if outcome.plan.kind != "allreduce":
        return []
    ours, peers = _sides(outcome.turns)
    lines = []
    for peer in peers:
        for mine in ours:
            means = []
            for least, label in ((0, "all sizes"), (_LARGE, "1M and above")):
                found = [
                    median(ratios(outcome.turns, subject, peer, mine))
                    for subject in _subjects(outcome.turns)
                    if parse_sizes(subject)[0] >= least
                ]
                if found:
                    means.append(f"{_number(geometric_mean(found))} ({label})")
            lines.append(f"time of {peer} / time of {mine}, geometric mean: {', '.join(means)}")
    return lines


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Lay out a table; every column but the first two is aligned to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip())
    rule = ["-" * width if column < 2 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines.insert(1, f"| {' | '.join(rule)} |" if markdown else "  ".join("-" * width for width in widths))
    return "\n".join(lines)


_Table = tuple[list[str], list[list[str]]]


def _allreduce(outcome: Outcome) -> _Table:
    turns = outcome.turns
    ours, _ = _sides(turns)
    header = ["size", "contender", "µs", "algbw GB/s", "busbw GB/s"]
    for mine in ours:
        header += [f"/ {mine}: min", "median", "max"]
    rows = []
    for subject in _subjects(turns):
        (size,) = parse_sizes(subject)
        for name in _contenders(turns):
            seconds = _seconds(turns, subject, name)
            rates = [
                algorithm_bandwidth(size, seconds),
                bus_bandwidth("allreduce", size, seconds, outcome.plan.ranks),
            ]
            label = f"{name} ({outcome.facts['algorithms'][subject]})" if name == ours[0] else name
            row = [subject, label, _number(seconds * 1e6), *map(_number, rates)]
            for mine in ours:
                row += _spread(ratios(turns, subject, name, mine) if name not in ours else [])
            rows.append(row)
    return header, rows


def _model(outcome: Outcome) -> _Table:
    turns, steps = outcome.turns, outcome.facts["steps"]
    header = ["model", "contender", "parameters", "ms/step", "efficiency: min", "median", "max"]
    rows = []
    for subject in _subjects(turns):
        for name in _contenders(turns):
            milliseconds = _seconds(turns, subject, name) * 1e3 / steps
            parameters = f"{outcome.facts['parameters'][subject]:,}"
            spread = _spread(ratios(turns, subject, NO_AVERAGING, name) if name != NO_AVERAGING else [])
            rows.append([subject, name, parameters, _number(milliseconds), *spread])
    return header, rows


def _memory(outcome: Outcome) -> _Table:
    turns = outcome.turns
    header = ["size", "what", "ms", "/ bare: min", "median", "max"]
    rows = []
    for subject in _subjects(turns):
        for name in _contenders(turns, subject):
            spread = _spread(ratios(turns, subject, name, BARE) if name != BARE else [])
            rows.append([subject, name, _number(_seconds(turns, subject, name) * 1e3), *spread])
    return header, rows


_TABLES: dict[str, Callable[[Outcome], _Table]] = {
    "allreduce": _allreduce,
    "model": _model,
    "memory": _memory,
}


def _record(outcome: Outcome) -> dict[str, object]:
    return {
        "machine": machine(),
        "plan": asdict(outcome.plan),
        "facts": dict(outcome.facts),
        "turns": [asdict(turn) for turn in outcome.turns],
        "medians": [
            {"subject": subject, "contender": name, "seconds": _seconds(outcome.turns, subject, name)}
            for subject in _subjects(outcome.turns)
            for name in _contenders(outcome.turns, subject)
        ],
        "ratios": [
            {"subject": subject, "above": above, "below": below, "by_round": found}
            for subject in _subjects(outcome.turns)
            for above in _contenders(outcome.turns)
            for below in _contenders(outcome.turns)
            if above != below and (found := ratios(outcome.turns, subject, above, below))
        ],
    }


def _sides(turns: Sequence[MeasuredTurn]) -> tuple[list[str], list[str]]:
    names = _contenders(turns)
    return [name for name in names if name.startswith("ours")], [name for name in names if not name.startswith("ours")]


def _subjects(turns: Sequence[MeasuredTurn]) -> list[str]:
    return list(dict.fromkeys(turn.subject for turn in turns))


def _contenders(turns: Sequence[MeasuredTurn], subject: str | None = None) -> list[str]:
    """Return the contenders' names, perhaps of one subject, in the order of the first round: ours comes first."""
    return list(dict.fromkeys(turn.contender for turn in turns if subject in (None, turn.subject)))


def _seconds(turns: Sequence[MeasuredTurn], subject: str, contender: str) -> float:
    return median(median(turn.seconds) for turn in turns if (turn.subject, turn.contender) == (subject, contender))


def _spread(values: Sequence[float]) -> list[str]:
    return [_number(value) for value in (min(values), median(values), max(values))] if values else [""] * 3


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
