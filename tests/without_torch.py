"""A pytest plugin for a Python without torch and Ray: what imports one of them is skipped. See `make test-pure`."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

_MISSING = {"ray", "torch"}


class _Skipping:
    """Skips the test, or the module of tests, in which a missing package is imported."""

    wanted = ""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in _MISSING:
            self.wanted = name
            pytest.skip(f"needs {name}", allow_module_level=True)
        return None


_skipping = _Skipping()
sys.meta_path.insert(0, _skipping)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that fails because the code under test has made the skip an error of its own."""
    _skipping.wanted = ""
    try:
        yield
    except Exception:
        if _skipping.wanted:
            pytest.skip(f"needs {_skipping.wanted}")
        raise
