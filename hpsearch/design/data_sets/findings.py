"""Describe a data set, as lines to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpsearch.design.data_sets.columns import SourceColumn
from hpsearch.design.data_sets.preprocessing import Values
from hpsearch.design.data_sets.split import Split, equal_rows
from hpsearch.design.data_sets.targets import Targets

__all__ = ["column_lines", "leaks", "split_lines", "target_line"]

_MOST_NAMES = 5
_PLURALS = {"number": "numbers", "category": "categories", "boolean": "booleans", "date": "dates"}


def column_lines(columns: Sequence[SourceColumn]) -> list[str]:
    """Describe the columns' types, missing values, and dropped columns."""
    used = [column for column in columns if not column.left_out]
    kinds = Counter(column.fitted["kind"] for column in used)
    words = [f"{count} {kind if count == 1 else _PLURALS[kind]}" for kind, count in kinds.most_common()]
    if len(used) < len(columns):
        words.append(f"{len(columns) - len(used)} left out")
    shares = {column.name: _absent(column.values) for column in used}
    missing = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    line = f"{len(columns)} columns: {', '.join(words)}" if len(columns) > 1 else f"1 column: {', '.join(words)}"
    if missing:
        line += "; missing: " + _some([f"{100 * shares[name]:.2g} % in `{name}`" for name in missing])
    lines = [line]
    reasons: dict[str, list[str]] = {}
    for column in columns:
        if column.left_out:
            reasons.setdefault(column.left_out, []).append(f"`{column.name}`")
    lines += [f"left out: {_some(names)}: {reason}" for reason, names in reasons.items()]
    tails = [f"`{column.name}`" for column in used if column.fitted.get("log")]
    if tails:
        lines.append(f"logarithms are taken, as tails are heavy: {_some(tails)}")
    return lines


def _absent(values: Values) -> float:
    if values.dtype == object:
        return sum(value is None for value in values) / len(values)
    return float(np.isnan(values).mean())


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def target_line(targets: Targets, name: str) -> str:
    """Describe the targets."""
    if targets.classes is None:
        values = targets.values
        return (
            f"{name}: numbers from {values.min():.6g} to {values.max():.6g}, on average {values.mean(dtype=float):.6g}"
        )
    counts = np.bincount(targets.values.astype(np.int64), minlength=len(targets.classes))
    words = [
        f"{targets.classes[number]!r} {100 * counts[number] / counts.sum():.2g} %" for number in np.argsort(-counts)
    ]
    shown = ", ".join(words) if len(words) <= _MOST_NAMES else f"from {words[0]} to {words[-1]}"
    return f"{name}: {len(words)} classes: {shown}"


def split_lines(split: Split, groups: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Return how rows were split; and what may be wrong with it."""
    lines = [f"{len(groups)} rows: {len(split.search)} to search with, {len(split.test)} to test on"]
    repeated = len(groups) - len(np.unique(groups))
    if repeated and split.whole:
        lines.append(f"{repeated} rows have the same inputs as another; such rows lie on one side of the split")
    if split.whole:
        return lines, []
    shared = int(np.isin(groups[split.test], groups[split.search]).sum())
    return lines, [f"{shared} of the {len(split.test)} test rows have the same inputs as one that the search sees"]


def leaks(columns: Sequence[SourceColumn], targets: Targets) -> list[str]:
    """Return the columns that determine the target."""
    said = []
    answers = equal_rows([targets.values])
    for column in columns:
        if targets.classes is None:
            told = column.values.dtype != object and _follows(column.values, targets.values.astype(np.float64))
        else:
            codes = equal_rows([column.values])
            pairs = equal_rows([codes, answers])
            told = codes.max() == answers.max() == pairs.max()
        if told:
            said.append(
                f"`{column.name}` tells the target: each value of one goes with one of the other; leave it out unless "
                "it is known before the target is"
            )
    return said


def _follows(values: NDArray[np.float64], targets: NDArray[np.float64]) -> bool:
    """Return whether numbers are a linear function of the targets, up to float32 rounding."""
    there = ~np.isnan(values)
    if there.sum() < 3 or np.ptp(values[there]) == 0 or np.ptp(targets[there]) == 0:
        return False
    one, other = ((part - part.mean()) / np.abs(part - part.mean()).max() for part in (values[there], targets[there]))
    return bool(abs(one @ other) > (1 - 1e-9) * np.sqrt((one @ one) * (other @ other)))
