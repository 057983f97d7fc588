"""Which examples the property tests draw: the same on each run, or fresh ones with `--hypothesis-profile=fresh`.

A profile holds for what a test's own `@settings` leaves open. pytest loads it before it reads the first test.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

__all__ = ["hold", "register"]


def register() -> None:
    """Make both profiles known, and take the one that repeats itself.

    No test asserts on time, and neither does hypothesis: on a busy machine an example takes as long as it takes.
    """
    timeless = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("repeated", timeless, derandomize=True, max_examples=50)
    settings.register_profile("fresh", timeless, derandomize=False, max_examples=500)
    settings.load_profile("repeated")


def hold() -> None:
    """Let draws that repeat themselves depend on nothing but their own test.

    Some of them hypothesis takes from the numbers and words in whichever modules of ours are imported by then: others
    as soon as one of these changes, or the test runs alone.
    """
    assert settings.default is not None
    if settings.default.derandomize:
        providers._get_local_constants = Constants
