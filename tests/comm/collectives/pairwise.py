"""A few combinations of many factors, among which every two values of two factors meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = dict[str, Any]


def every_combination(factors: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool]) -> list[Row]:
    """Return all combinations that are possible."""
    rows = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    return [row for row in rows if possible(row)]


def pairwise(factors: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool]) -> list[Row]:
    """Choose combinations so that every possible pair of values occurs in one; the same ones in every run.

    Most mistakes show with one value or with two together. Greedy: a row begins with the first pair that is missing,
    and takes for each other factor the value that makes up most missing pairs (Cohen et al.: The AETG System, 1997).

    Args:
        factors: The values of each, by name.
        possible: Says whether values may come together, of some factors or of all. Values of some that may must be
            part of a combination of all that may.
    """
    missing = {}  # in a fixed order, which a set would not have
    for one, other in combinations(factors, 2):
        for a, b in product(range(len(factors[one])), range(len(factors[other]))):
            if possible({one: factors[one][a], other: factors[other][b]}):
                missing[frozenset({(one, a), (other, b)})] = {one: a, other: b}
    rows = []
    while missing:
        chosen = next(iter(missing.values())).copy()
        for name in factors:
            if name not in chosen:
                chosen[name] = max(
                    (place for place in range(len(factors[name])) if possible(_row(factors, chosen | {name: place}))),
                    key=lambda place: sum(frozenset({(name, place), pair}) in missing for pair in chosen.items()),
                )
        for pair in combinations(chosen.items(), 2):
            missing.pop(frozenset(pair), None)
        rows.append(_row(factors, {name: chosen[name] for name in factors}))
    return rows


def every_second(*factors: Sequence[Any]) -> list[Any]:
    """Return all combinations as parameters of a test, every second one marked exhaustive.

    Of three factors or more, of two values or more each, every two values of two factors still meet in the others.
    """
    return [
        pytest.param(
            *(factor[place] for factor, place in zip(factors, places, strict=True)),
            marks=[pytest.mark.exhaustive] if sum(places) % 2 else [],
        )
        for places in product(*(range(len(factor)) for factor in factors))
    ]


def _row(factors: Mapping[str, Sequence[Any]], places: Mapping[str, int]) -> Row:
    return {name: factors[name][place] for name, place in places.items()}
