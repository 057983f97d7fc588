"""Whether what a process has imported is still what lies there."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpsearch.worker import own_files
from hpsearch.worker.own_files import LoadedCode

_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a module, by default anew, and give its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()

    def written(text: str, name: str = "", seconds: float | None = None) -> str:
        name = name or f"edited_module_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        if seconds is not None:
            os.utime(path, (seconds, seconds))
        names.add(name)
        return name

    yield written
    for name in names:
        sys.modules.pop(name, None)


def test_what_nobody_touches_is_never_edited(write):
    code = LoadedCode()
    importlib.import_module(write("value = 1", seconds=1.0))
    assert [code.edited() for _ in range(3)] == [None] * 3


def test_a_module_that_is_written_after_its_import_is_named_from_then_on(write):
    code = LoadedCode()
    assert code.edited() is None
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    write("value = 2", name)
    assert [code.edited() for _ in range(2)] == [name] * 2


@pytest.mark.parametrize(("text", "seconds"), [("value = 2", 5.0), ("value = 22", 1.0)])
def test_one_that_looks_old_is_another_one_too_if_it_was_looked_at_before(write, text, seconds):
    """As by `cp -p`, or by unpacking an archive."""
    code = LoadedCode()
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    assert code.edited() is None
    write(text, name, seconds)
    assert code.edited() == name


def test_one_that_was_written_before_the_look_that_came_before_its_import_is_not_edited(write):
    code = LoadedCode()
    name = write("value = 1")
    os.utime(sys.path[0] + f"/{name}.py", ns=(code._last_look + 1, code._last_look + 1))
    assert code.edited() is None
    importlib.import_module(name)
    assert code.edited() is None


def test_installed_modules_and_those_that_are_gone_are_not_looked_at(write, tmp_path):
    code = LoadedCode()
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    (tmp_path / f"{name}.py").unlink()
    code.edited()
    assert str(tmp_path / f"{name}.py") not in code._known
    assert not {json.__file__, pytest.__file__, own_files.__file__} & code._known.keys()
