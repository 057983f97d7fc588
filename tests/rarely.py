"""Cases of a test that `make test` leaves to `make test-all`, as others show the same, or to `make gpu`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest


def chooses_gpu(marks: str) -> bool:
    """Return whether an expression of marks, as pytest's `-m` takes it, chooses tests that need a GPU."""
    return re.search(r"(?<!not )\bgpu\b", marks) is not None


def rarely(*cases: Any) -> list[Any]:
    """Mark cases of `pytest.mark.parametrize` as exhaustive.

    Args:
        *cases: What each would be without; a tuple holds a value for each argument.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive) for case in cases
    ]


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Mark all cases of tests with `pytest.mark.some_cases(COUNT)` as exhaustive but for so many.

    They are spread over all that a test has, and each test of a file begins one further than the one before: what all
    of them are tried with, each strategy or transport, is so tried by some of them.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("some_cases") and not item.get_closest_marker("exhaustive"):
            tests[item.nodeid.partition("[")[0]].append(item)
    before: Counter[str] = Counter()
    for name, cases in tests.items():
        mark = cases[0].get_closest_marker("some_cases")
        assert mark is not None
        file, (count,) = name.partition("::")[0], mark.args
        chosen = {(before[file] + number * len(cases) // count) % len(cases) for number in range(count)}
        before[file] += 1
        for number, item in enumerate(cases):
            if number not in chosen:
                item.add_marker(pytest.mark.exhaustive)
