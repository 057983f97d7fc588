"""What a test registers is gone after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpsearch_trainers.architectures import OPERATIONS
from hpsearch_trainers.architectures.registry import Build


@pytest.fixture
def registry() -> Iterator[dict[str, Build]]:
    """The operations, which are again what they were after the test."""
    before = dict(OPERATIONS)
    yield OPERATIONS
    OPERATIONS.clear()
    OPERATIONS.update(before)


@pytest.fixture
def imported(
    registry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], ModuleType]]:
    """A function that writes a module, by name and source, and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def write(name: str, source: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        names.append(name)
        __import__(name)
        return sys.modules[name]

    yield write
    for name in names:
        sys.modules.pop(name, None)
