"""Which idle workers of a process its next search finds, and when Ray counts as lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
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


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "raylet"))
        listener.listen()
        yield listener


@pytest.fixture
def gcs() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def look_at(raylet: socket.socket, gcs: socket.socket, patience: float = 0.0) -> Pulse:
    return Pulse(raylet.getsockname(), gcs.getsockname(), patience)


def test_a_ray_whose_two_processes_live_isnt_lost(raylet, gcs):
    with closing(look_at(raylet, gcs)) as pulse:
        assert pulse.lost(0.0) is None
        assert pulse.lost(1000.0) is None
        assert pulse.answers


def test_a_raylet_that_has_ended_is_noticed_at_once(raylet, gcs):
    with closing(look_at(raylet, gcs, patience=30.0)) as pulse:
        raylet.accept()[0].close()
        assert pulse.lost(0.0) == "the raylet of this node has ended"


def test_a_gcs_that_has_ended_is_lost_at_once_where_nobody_starts_it_anew(raylet, gcs):
    with closing(look_at(raylet, gcs)) as pulse:
        port = gcs.getsockname()[1]
        gcs.close()
        lost = pulse.lost(0.0)
        assert lost is not None
        assert lost.startswith(f"its GCS at 127.0.0.1:{port} doesn't answer: ")


def test_a_gcs_that_comes_back_in_time_isnt_lost(raylet, gcs):
    with closing(look_at(raylet, gcs, patience=30.0)) as pulse:
        port = gcs.getsockname()[1]
        gcs.close()
        assert pulse.lost(100.0) is None
        assert not pulse.answers
        assert pulse.lost(129.0) is None
        with socket.create_server(("127.0.0.1", port)):
            assert pulse.lost(129.5) is None
            assert pulse.answers
        assert pulse.lost(131.0) is None  # the time counts anew
        assert pulse.lost(161.0) is not None


def test_a_raylet_that_cant_be_seen_isnt_looked_at(tmp_path, gcs):
    with closing(Pulse(str(tmp_path / "none"), gcs.getsockname())) as pulse:
        assert pulse.lost(0.0) is None
