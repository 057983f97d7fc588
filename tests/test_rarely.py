from __future__ import annotations

import pytest

from tests.rarely import chooses_gpu

pytest_plugins = ["pytester"]

CASES = """
import pytest

pytestmark = pytest.mark.some_cases(2)

@pytest.fixture(params="abcde")
def way(request):
    return request.param

def test_first(way): pass
@pytest.mark.parametrize("also", [pytest.param("x", marks=pytest.mark.exhaustive), "y"])
def test_second(way, also): pass
@pytest.mark.some_cases(1)
def test_third(way): pass
def test_alone(): pass
class TestMore:
    @pytest.mark.exhaustive
    def test_first(self, way): pass
"""


@pytest.mark.parametrize(
    ("marks", "chosen"),
    [("", False), ("gpu", True), ("gpu and not ray", True), ("not gpu", False), ("not slow", False)],
)
def test_gpus_are_seen_by_those_who_choose_tests_that_need_them(marks, chosen):
    assert chooses_gpu(marks) == chosen


@pytest.fixture
def collected(pytester):
    """Return the names of the tests that an expression of marks selects."""
    pytester.makeini("[pytest]\nmarkers =\n    exhaustive\n    some_cases\n")
    path = pytester.makepyfile(CASES)

    def collect(marks: str) -> list[str]:
        result = pytester.runpytest_inprocess(path, "--collect-only", "-q", "-p", "tests.conftest", "-m", marks)
        return [line.rpartition("::")[2] for line in result.outlines if "::" in line]

    return collect


def test_each_test_takes_cases_far_apart_and_others_than_the_test_before(collected):
    quick = ["test_first[a]", "test_first[c]", "test_second[b-y]", "test_second[d-y]", "test_third[c]", "test_alone"]
    assert sorted(collected("not exhaustive")) == sorted(quick)


def test_all_others_are_exhaustive(collected):
    names = sorted(collected("exhaustive") + collected("not exhaustive"))
    assert names == sorted(collected("exhaustive or not exhaustive"))
    assert len(names) == 5 + 2 * 5 + 5 + 1 + 5
