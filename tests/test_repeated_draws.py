from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.draws import FEW

ROOT = Path(__file__).parents[1]

PROPERTIES = """
import neighbour
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

def write(kind, drawn):
    with open("drawn", "a") as file:
        print(kind, repr(drawn), file=file)

numbers = st.integers() | st.text() | st.floats()

@given(numbers)
def test_plain(drawn):
    write("plain", drawn)

@given(numbers)
@settings(max_examples=7)
def test_counted(drawn):
    write("counted", drawn)

class TestMany:
    @given(numbers)
    @settings(max_examples=70)
    def test_many(self, drawn):
        write("many", drawn)

class Machine(RuleBasedStateMachine):
    @rule(drawn=numbers)
    def step(self, drawn):
        write("machine", drawn)

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=3, stateful_step_count=5)
"""


Drawn = dict[str, list[str]]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Drawn]:
    """Return a function that collects what the tests draw, with these options, alongside a module with this code."""

    def run(*options: str, neighbour: str = "") -> Drawn:
        here = tmp_path_factory.mktemp("properties")
        (here / "test_properties.py").write_text(PROPERTIES)
        (here / "neighbour.py").write_text(neighbour)
        alone = ["-c", os.devnull, f"--rootdir={here}", "-p", "no:cacheprovider", "-p", "tests.conftest"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *alone, *options, "test_properties.py"],
            cwd=here,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{here}"},
            check=True,
            stdout=subprocess.PIPE,
        )
        lines = (here / "drawn").read_text().splitlines()
        return {
            kind: [line for line in lines if line.startswith(kind)] for kind in ("plain", "counted", "many", "machine")
        }

    return run


@pytest.fixture(scope="module")
def usual(drawn: Callable[..., Drawn]) -> Drawn:
    return drawn()


@pytest.mark.exhaustive
def test_each_run_draws_the_same_examples_whatever_the_modules_that_are_imported_hold(drawn, usual):
    assert drawn(neighbour="\n".join(f"n{i} = {7**i}, {1 / 7**i}, 'word{i}'" for i in range(50))) == usual
    assert len(usual["counted"]) == 7
    assert len(usual["plain"]) == 50
    assert len(usual["many"]) == 70


@pytest.mark.exhaustive
def test_fresh_runs_draw_others_and_more_where_a_test_has_no_number_of_its_own(drawn, usual):
    fresh = drawn("--hypothesis-profile=fresh")
    for kind in usual:
        assert fresh[kind] != usual[kind]
    assert len(fresh["counted"]) == 7
    assert len(fresh["plain"]) > 200


@pytest.mark.exhaustive
def test_for_make_test_a_few_of_the_same_are_drawn_where_a_test_has_more_of_its_own(drawn, usual):
    few = drawn("--hypothesis-profile=few")
    assert (len(few["plain"]), len(few["many"]), len(few["counted"])) == (FEW, FEW, FEW)
    assert few["counted"] == usual["counted"][:FEW]
