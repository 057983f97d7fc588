"""Formats of durations, numbers, params and paths for people. Programs don't parse these texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpsearch.objective import Objective
from hpsearch.trial import Params, TrialRow, TrialState, Value

LONGEST_CELL = 100
"""Maximum number of characters of a reason or message in a cell."""


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    minutes, remainder = divmod(total, 60)
    if not minutes:
        return f"{remainder} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {remainder} s"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"


def number(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits; integers keep all digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.{digits}g}" if abs(value) < 1e4 or abs(value) >= 1e15 else f"{value:.0f}"


def numbers(values: Sequence[float | None]) -> list[str]:
    """Format a column of numbers with the same number of digits: four, or up to six to distinguish different values.

    None becomes an empty cell.
    """
    different = {value for value in values if value is not None and value == value}
    enough = next(
        (digits for digits in (4, 5) if len({number(value, digits) for value in different}) == len(different)), 6
    )
    return ["" if value is None else number(value, enough) for value in values]


def bytes_text(count: int) -> str:
    """Format a number of bytes in a unit that needs few digits."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def amount_of(done: int, total: int | None) -> str:
    """Format progress: `48 of 51`, or `60 (51 planned)` if repeated iterations exceed the plan.

    Args:
        done: The current number.
        total: The planned number; None if unknown.
    """
    if total is None:
        return f"{done:,}"
    return f"{done:,} of {total:,}" if done <= total else f"{done:,} ({total:,} planned)"


def counted(count: int, unit: str) -> str:
    """Format a count: `1 trial`, `1,024 trials`."""
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def up_to(until: int | None, resource: str | None = None) -> str:
    """Format the end of a rung.

    Args:
        until: Its last iteration, or its costs; None if the sweep has no last iteration.
        resource: What rungs end by; None: iterations.
    """
    if until is None:
        return "to their end"
    return f"to iteration {until}" if resource is None else f"to {until} {resource}"


def params_line(params: Params) -> str:
    """Format params in one line: `lr=0.01234  layers=3  activation=relu`."""
    return "  ".join(f"{name}={_value(value)}" for name, value in params.items())


def front_line(leaders: Sequence[TrialRow], objective: Objective) -> str:
    """Describe a Pareto front: `7 trials, accuracy 0.91 to 0.98, latency_ms 3.1 to 20`."""
    if not leaders:
        return f"no {objective.title} yet"
    if not leaders[0].feasible:
        broken = " and ".join(objective.broken(leaders[0].score))
        return f"none: trial {leaders[0].number} breaks {broken} least"
    parts = [counted(len(leaders), "trial")]
    for goal, values in zip(objective.goals, zip(*(row.values for row in leaders), strict=True), strict=True):
        low, high = number(min(values)), number(max(values))
        parts.append(f"{goal.name} {low}" if low == high else f"{goal.name} {low} to {high}")
    return ", ".join(parts)


def best_parts(best: TrialRow, objective: Objective) -> tuple[str, str, str]:
    """Describe the best trial: `loss`, `0.125`, `, trial 3 after 9 iterations, which breaks latency_ms <= 5`."""
    after = counted(best.value_iteration or best.iterations, "iteration")
    broken = "" if best.feasible else f", which breaks {' and '.join(objective.broken(best.score))}"
    return objective.title, f"{best.values[0]:.6g}", f", trial {best.number} after {after}{broken}"


def by_state(counts: Mapping[TrialState, int]) -> str:
    """Format counts of trials: `2 waiting, 1,024 complete`."""
    return ", ".join(f"{counts[state]:,} {state}" for state in TrialState if counts.get(state))


def by_width(counts: Mapping[int, int], unit: str) -> str:
    """Format counts by width: `27 segments on 1 worker each, 1 on 3`."""
    parts = [f"{count} on {width}" for width, count in sorted(counts.items())]
    if not parts:
        return ""
    width, count = min(counts.items())
    each = "" if count == 1 else " each"
    parts[0] = f"{counted(count, unit)} on {counted(width, 'worker')}{each}"
    return ", ".join(parts)


def first_of(items: Sequence[object], most: int) -> str:
    """List items; if there are more than `most`, list the first ones and the number of the others."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def trials_named(numbers: Sequence[int], most: int = 20) -> str:
    """List trials by number: `trial 3`, `trials 3, 5 and 2 more`."""
    return f"{'trial' if len(numbers) == 1 else 'trials'} {first_of(numbers, most)}"


def shortened(text: str, width: int) -> str:
    """Return the first line of a text, cut to `width` characters."""
    line = next(iter(text.splitlines()), "")
    return line if len(line) <= width else f"{line[: width - 1]}…"


def shown_path(path: Path, here: Path) -> str:
    """Return the shortest path from a folder. It never looks like an option of a command.

    Args:
        path: A file or a directory, absolute or relative to `here`.
        here: The folder, as an absolute path.
    """
    name = str(path.relative_to(here) if path.is_relative_to(here) and path != here else path)
    return f"./{name}" if name.startswith("-") else name


def _value(value: Value) -> str:
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
