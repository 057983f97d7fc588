"""The end of a process whose build takes too long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hpsearch.support.driver import ROOT


def ended(block: str, seconds: str) -> subprocess.CompletedProcess[str]:
    """Run a block of code that has this limit, in a process of its own."""
    code = f"""
import contextlib, time
from hpsearch.backends.ray import worker
worker._LATER_SECONDS = 0.01
with contextlib.suppress(ValueError), worker.limited({seconds}):
    {block}
time.sleep(0.2)
print("came to its end")
"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_takes_longer_than_it_may_ends_the_process_in_the_middle_of_it():
    process = ended("time.sleep(600)", "0.01")
    assert (process.returncode, process.stdout) == (1, "")
    assert "line 6 in <module>" in process.stderr


@pytest.mark.parametrize(
    ("block", "seconds"), [("pass", "0.15"), ("raise ValueError('it bursts')", "0.15"), ("time.sleep(0.1)", "None")]
)
def test_what_has_ended_or_raised_or_may_take_any_time_ends_no_process(block, seconds):
    process = ended(block, seconds)
    assert (process.returncode, process.stdout, process.stderr) == (0, "came to its end\n", "")
