"""Outputs and names that renamings must not change: journals, tables, pages, draws, the command line, import paths.

`python -m tests.goldens.made` writes them anew.
"""

from __future__ import annotations

import difflib
import sys

import pytest

from tests.goldens.made import FROZEN, NAMES, Made, help_texts, made
from tests.goldens.names import documented_paths, is_there, names_of

GOLDENS = sorted(path.name for path in FROZEN.iterdir() if path.name not in ("help.txt", NAMES))

REWRITE = (
    "If the change is meant, run `python -m tests.goldens.made`, and say in the commit which goldens changed, and why"
)

PLACEHOLDERS = {"hpsearch.reason", "hpsearch.state", "hpsearch.value"}
"""What the docs name that is no import path: columns of other tools."""


@pytest.fixture(scope="module")
def current() -> Made:
    return made()


def frozen(name: str) -> str:
    return (FROZEN / name).read_text(encoding="utf-8")


def assert_same(name: str, now: str) -> None:
    lines = difflib.unified_diff(frozen(name).splitlines(), now.splitlines(), f"frozen {name}", "now", n=1, lineterm="")
    if difference := [line if len(line) <= 400 else f"{line[:400]}..." for line in lines]:
        pytest.fail("\n".join([*difference[:60], "", REWRITE]), pytrace=False)


@pytest.mark.parametrize("name", GOLDENS)
def test_what_is_written_is_what_it_was(name, current):
    assert_same(name, current[name])


def test_each_golden_has_its_file(current):
    assert sorted(current) == GOLDENS


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays out options in another way from Python 3.13 on")
def test_the_help_of_each_command_is_what_it_was():
    assert_same("help.txt", help_texts())


def test_no_frozen_name_is_gone_and_each_new_one_is_frozen(current):
    before, now = set(frozen(NAMES).splitlines()), set(names_of(current))
    # A path stays frozen when a page that named it is gone.
    gone = {line for line in before - now if not (line.startswith("path ") and is_there(line.removeprefix("path ")))}
    assert sorted(gone) == [], "these names are in users' files and scripts"
    assert sorted(now - before) == [], REWRITE


def test_each_import_path_that_the_docs_name_is_there():
    assert {path for path in documented_paths() if not is_there(path)} == PLACEHOLDERS
