"""Cases of a test that `make test` leaves to `make test-all`, because others of it show the same."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["rarely"]


def rarely(*cases: Any) -> list[Any]:
    """Mark cases of `pytest.mark.parametrize` as exhaustive.

    Args:
        *cases: What each would be without; a tuple holds a value for each argument.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive) for case in cases
    ]
