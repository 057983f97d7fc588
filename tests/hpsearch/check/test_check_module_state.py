"""Which values of the user's modules are seen, and which differences between two looks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpsearch.check.module_state import changes, module_state

TEXT = """
import functools
import logging
import os
import random
import warnings

import numpy
import torch

COUNT = 1
NAMES = {"a": [1, 2]}
TENSOR = torch.zeros(2)
ARRAY = numpy.zeros(2)
GENERATORS = [torch.Generator(), numpy.random.default_rng(0), random.Random(0)]
OTHER = open
LOG = logging.getLogger("users_own")
SYSTEM_RANDOM = random.SystemRandom()
OF_MODULES = {warnings: logging}
ENVIRON = os.environ
OBJECTS = numpy.array([{}], dtype=object)


class Settings:
    rate = 0.1

    def __init__(self):
        self.width = 8


SETTINGS = Settings()


@functools.lru_cache
def cached(value):
    return value


def collects(value, into=[]):
    into.append(value)


def scaled(value, by=numpy.ones(2)):
    return by * value


def counts():
    counts.calls = 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's."""
    import importlib

    (tmp_path / "users_own.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("users_own")
    del sys.modules["users_own"]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("COUNT = 2", "COUNT"),
        ("NAMES['a'].append(3)", "NAMES"),
        ("TENSOR[0] = 1", "TENSOR"),
        ("ARRAY[0] = 1", "ARRAY"),
        ("scaled.__defaults__[0][0] = 2", "scaled(by)"),
        ("GENERATORS[0].seed()", "GENERATORS"),
        ("GENERATORS[1].random()", "GENERATORS"),
        ("GENERATORS[2].random()", "GENERATORS"),
        ("Settings.rate = 0.2", "Settings.rate"),
        ("SETTINGS.width = 9", "SETTINGS"),
        ("cached(1)", "cached"),
        ("collects(1)", "collects(into)"),
        ("counts()", "counts.calls"),
        ("OBJECTS[0]['a'] = 1", "OBJECTS"),
        ("NEW = 1", "NEW"),
    ],
)
def test_a_value_that_changed_is_named(module, statement, name):
    before = module_state("")
    assert list(changes(before, module_state(""))) == []
    exec(statement, vars(module))
    found = [(changed, first != second) for changed, first, second in changes(before, module_state(""))]
    assert [changed for changed, _ in found] == [f"users_own.{name}"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "statement",
    [
        "LOG.info('once')",  # it keeps that the level is off
        "SYSTEM_RANDOM.random()",
        "warnings.a_value_that_a_test_sets = 1",
        "ENVIRON['A_VARIABLE_OF_A_TEST'] = '1'",
        "OBJECTS[0] = {}",
    ],
)
def test_what_libraries_and_the_process_keep_is_left_alone(module, monkeypatch, statement):
    monkeypatch.setenv("A_VARIABLE_OF_A_TEST", "0")
    monkeypatch.setattr(warnings, "a_value_that_a_test_sets", 0, raising=False)
    before = module_state("")
    exec(statement, vars(module))
    assert list(changes(before, module_state(""))) == []


def test_a_module_that_was_imported_meanwhile_is_left_out(module):
    before = {name: values for name, values in module_state("").items() if name != "users_own"}
    assert list(changes(before, module_state(""))) == []


def test_a_long_value_is_shown_in_short(module):
    before = module_state("")
    module.NAMES["b"] = list(range(1000))
    ((_, first, second),) = changes(before, module_state(""))
    assert first == "{'a': [1, 2]}"
    assert len(second) == 60
