"""Which idle workers of a process its next search finds."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from hpsearch.backends.ray.nodes import Shape
from hpsearch.backends.ray.session import Kind, Pool, Pulse

SMALL, LARGE = Kind(Shape(1, 0.0), "AUTO"), Kind(Shape(2, 0.0), "AUTO")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The workers that were ended, in order."""
    found: list[Any] = []
    monkeypatch.setattr(ray, "kill", lambda handle, no_restart: found.append(handle))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    return found


@pytest.fixture
def pool(tmp_path: Any) -> Pool:
    """Of a local Ray, which keeps them for as long as it lives."""
    return Pool(shared=False, pulse=Pulse(str(tmp_path / "none"), ("localhost", 1)))


def test_the_last_one_that_came_is_taken_first(pool, ended):
    pool.join("first", SMALL)
    pool.leave("first")
    for handle in ("starting", "ready"):
        pool.give(SMALL, handle, f"its name: {handle}")
    pool.join("second", SMALL)
    taken = [pool.take(SMALL) for _ in range(3)]
    assert taken == [("ready", "its name: ready"), ("starting", "its name: starting"), None]
    assert ended == []


@pytest.mark.parametrize("other", [LARGE, Kind(SMALL.shape, None)])
def test_those_of_another_kind_make_room(pool, ended, other):
    pool.join("first", SMALL)
    pool.leave("first")
    pool.give(SMALL, "idle", "")
    pool.join("second", other)
    assert ended == ["idle"]
    assert pool.take(other) is None
    pool.leave("second")
    pool.give(SMALL, "late", "")  # by a third search, which ran meanwhile
    assert ended == ["idle", "late"]
    assert pool.take(SMALL) is None


def test_none_is_kept_while_another_search_may_wait_for_its_room(pool, ended):
    pool.join("first", SMALL)
    pool.join("second", SMALL)
    pool.leave("first")
    pool.give(SMALL, "one", "")
    assert (ended, pool.is_used) == (["one"], True)
    pool.leave("second")
    pool.leave("second")  # closing twice does no harm
    pool.give(SMALL, "two", "")
    assert (ended, pool.is_used) == (["one"], False)
    assert pool.take(SMALL) == ("two", "")
