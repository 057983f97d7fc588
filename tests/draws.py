"""Which examples the property tests draw: the same on each run, or fresh ones with `--hypothesis-profile=fresh`.

A profile holds for what a test's own `@settings` leaves open. pytest loads it before it reads the first test. With
`--hypothesis-profile=few` those of `make test` draw a few examples each, whatever number is their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

FEW = 4
"""Examples of a test in `make test`."""


def register() -> None:
    """Make the profiles known, and take the one that repeats itself.

    No test asserts on time, and neither does hypothesis: on a busy machine an example takes as long as it takes.
    """
    timeless = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("repeated", timeless, derandomize=True, max_examples=50)
    settings.register_profile("fresh", timeless, derandomize=False, max_examples=500)
    settings.register_profile("few", timeless, derandomize=True, max_examples=FEW)
    settings.load_profile("repeated")


def hold() -> None:
    """Let draws that repeat themselves depend on nothing but their own test.

    Some of them hypothesis takes from the numbers and words in whichever modules of ours are imported by then: others
    as soon as one of these changes, or the test runs alone.
    """
    assert settings.default is not None
    if settings.default.derandomize:
        providers._get_local_constants = Constants


def draw_few(items: Iterable[pytest.Item]) -> None:
    """Where the profile is that of few examples, have tests with more of their own draw no more than it says."""
    if settings.get_current_profile_name() != "few":
        return
    for item in items:
        function: Any = getattr(item, "function", None)
        own = getattr(function, "_hypothesis_internal_use_settings", None)  # what `@settings` gives it
        if own is not None and own.max_examples > FEW:
            function._hypothesis_internal_use_settings = settings(own, max_examples=FEW)
