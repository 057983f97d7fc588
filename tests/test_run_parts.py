from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.run_parts import PARTS, Counts, count, run, summary

ROOT = Path(__file__).parents[1]

QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-c", "/dev/null")


@pytest.fixture
def tests_of(tmp_path):
    def write(name: str, text: str) -> tuple[str, ...]:
        path = tmp_path / f"test_{name}.py"
        path.write_text(textwrap.dedent(text))
        return (str(path), f"--rootdir={tmp_path}", *QUIET)

    return write


MIXED = """
import pytest

def test_good(): pass
def test_bad(): raise ValueError
@pytest.mark.skip
def test_idle(): pass
@pytest.fixture
def breaks():
    yield
    raise ValueError
def test_clean(breaks): raise ValueError
"""


def test_one_summary_tells_all_parts_and_names_what_failed(tests_of, capfd):
    code = run({"one": tests_of("one", MIXED), "two": tests_of("two", "def test_good(): pass")}, ["-q"])
    lines = capfd.readouterr().out.splitlines()
    assert code == 1
    assert lines[-5:] == [
        "one: 1 passed, 2 failed, 1 skipped",
        "two: 1 passed, 0 failed, 0 skipped",
        "FAILED test_one.py::test_bad - test_one.py:5: ValueError",
        "FAILED test_one.py::test_clean - test_one.py:12: ValueError",
        "2 passed, 2 failed, 1 skipped",
    ]
    assert {line.partition(": ")[0] for line in lines[: lines.index("", 1)] if line} <= {"one", "two"}


@pytest.mark.exhaustive
def test_parts_that_all_pass_end_well(tests_of, capfd):
    assert run({"one": tests_of("one", "def test_good(): pass")}, []) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


@pytest.mark.exhaustive
def test_a_part_without_any_test_left_is_no_failure_but_nothing_at_all_is(tests_of, capfd):
    good, none = tests_of("good", "def test_good(): pass"), tests_of("none", "def test_other(): pass")
    assert run({"good": good, "none": none}, ["-k", "good and not other"]) == 0
    assert run({"none": none}, ["-k", "missing"]) == 1


@pytest.mark.exhaustive
def test_parts_that_break_off_are_failures(tests_of, capfd):
    texts = {"one": "import no_such_module", "two": "import os; os._exit(3)", "three": "def test_good(): pass"}
    assert run({name: tests_of(name, text) for name, text in texts.items()}, []) == 1
    lines = capfd.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines if "pytest ended with" in line} == {"one", "two"}


@pytest.mark.exhaustive
def test_a_process_that_is_left_behind_is_named_and_a_failure(tests_of, capfd, monkeypatch):
    monkeypatch.setattr("tests.run_parts._LEAVING_SECONDS", 0.0)
    leaves = """
    import subprocess, sys
    def test_leaves():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    """
    assert run({"one": tests_of("one", leaves)}, []) == 1
    (left,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("LEFT BEHIND")]
    assert "time.sleep(1000)" in left
    os.kill(int(left.split()[2]), signal.SIGKILL)


@pytest.mark.exhaustive
def test_no_more_parts_run_at_once_than_asked_for_and_each_in_its_turn(tests_of, tmp_path, capfd):
    alone = f"""
    import pathlib
    order, busy = pathlib.Path({str(tmp_path)!r}) / "order", pathlib.Path({str(tmp_path)!r}) / "busy"
    def test_it():
        busy.touch(exist_ok=False)
        order.open("a").write(__name__[-1])
    def test_later():
        busy.unlink()
    """
    assert run({name: tests_of(name, alone) for name in "bacd"}, [], at_once=1) == 0
    assert (tmp_path / "order").read_text() == "bacd"


@pytest.mark.exhaustive
def test_parts_that_wait_their_turn_do_not_begin_after_ctrl_c(tests_of, capfd):
    interrupts = "import os, signal\ndef test_it(): os.kill(os.getppid(), signal.SIGINT)"
    words = {"one": tests_of("one", interrupts), "two": tests_of("two", "def test_good(): pass")}
    assert run(words, [], at_once=1) == 130
    lines = capfd.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("two")]
    assert lines[-1] in ("0 passed, 0 failed, 0 skipped", "1 passed, 0 failed, 0 skipped")


@pytest.mark.exhaustive
def test_ctrl_c_ends_all_parts_and_sums_up(tests_of):
    words = {
        name: tests_of(
            name, f"import time\ndef test_waits():\n    print({name!r}, 'began', flush=True); time.sleep(1000)"
        )
        for name in ("one", "two")
    }
    code = f"import sys; from tests.run_parts import run; sys.exit(run({words!r}, ['-s']))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        missing = {"one", "two"}
        while missing:
            line = process.stdout.readline()
            assert line, "it ended"
            missing -= {name for name in missing if f"{name} began" in line}
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert process.returncode == 130
    assert said.splitlines()[-1] == "0 passed, 0 failed, 0 skipped"
    assert "LEFT BEHIND" not in said


def test_a_part_that_was_killed_is_told_with_what_it_had_done():
    assert summary({"ray": Counts(3, {"a": "b.py:1: E"})}, {"ray": -9}, ["12 sleep"]) == [
        "ray: 3 passed, 1 failed, 0 skipped; pytest ended with -9",
        "FAILED a - b.py:1: E",
        "LEFT BEHIND 12 sleep",
        "3 passed, 1 failed, 0 skipped",
    ]


def test_a_test_that_fails_twice_is_counted_once(tmp_path):
    outcomes = tmp_path / "outcomes"
    outcomes.write_text("failed\ta\tone\npassed\tb\t\nfailed\tb\ttwo\nfailed\ta\tthree\nskipped\tc\t\npassed\td\t\n")
    assert count(outcomes) == Counts(1, {"a": "one", "b": "two"}, 1)


def test_every_file_of_tests_belongs_to_exactly_one_part():
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")}

    def belongs(file: str, words: tuple[str, ...]) -> bool:
        taken = [word for word in words if not word.startswith("--")]
        left_out = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
        within = [any(f"{file}/".startswith(f"{place}/") for place in places) for places in (taken, left_out)]
        return within == [True, False]

    assert {file: sum(belongs(file, words) for words in PARTS.values()) for file in files} == dict.fromkeys(files, 1)


def test_each_file_of_tests_has_a_name_of_its_own():
    """pytest imports them by their names alone: of two that share one, it reads the first where both are asked for."""
    names = Counter(path.name for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


FORKS = """
from tests.forking import Forked, end_forking

def test_forks():
    program = Forked("tests.hpsearch.support.fork_server", "json")
    program.stdin.write('["dumps", [1]]\\n["loads", ["no JSON"]]\\n')
    print("parent", open(f"/proc/{program.pid}/stat").read().rpartition(")")[2].split()[1], flush=True)
    assert program.communicate().split() == ["0", "1"]
    end_forking()
"""


@pytest.mark.exhaustive
def test_one_process_forks_for_all_parts_and_ends_with_them(tests_of, capfd):
    assert run({name: tests_of(name, FORKS) for name in ("one", "two")}, ["-s"], forks=True) == 0
    parents = [line.split()[-1] for line in capfd.readouterr().out.splitlines() if "parent" in line]
    assert len(parents) == 2
    assert len(set(parents)) == 1
