"""The end of a process whose build takes too long, with something else in the place of that end."""

from __future__ import annotations

import contextlib
import threading

import pytest

from hpsearch.backends.ray.worker import limited
from tests.hpsearch.support.conditions import wait_until


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hpsearch-build-limit"]


def test_what_takes_longer_than_it_may_ends_the_process_in_the_middle_of_it():
    struck = threading.Event()
    with limited(0.01, later=0.01, end=struck.set):
        assert all(timer.daemon for timer in timers()), "a process that exits would wait for it"
        assert struck.wait(60.0)


@pytest.mark.parametrize("error", [None, ValueError("it bursts"), SystemExit(1)])
def test_what_has_ended_or_raised_ends_no_process(error):
    struck = threading.Event()
    with contextlib.suppress(ValueError, SystemExit), limited(600.0, end=struck.set):
        assert len(timers()) == 1
        if error is not None:
            raise error
    wait_until(lambda: not timers())
    assert not struck.is_set()


def test_what_may_take_any_time_has_no_timer():
    with limited(None):
        assert not timers()
