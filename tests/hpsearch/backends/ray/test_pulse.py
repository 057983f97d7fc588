from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpsearch.backends.ray.local_ray import OwnThread
from hpsearch.backends.ray.session import Pulse


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


def test_what_a_call_in_a_thread_of_its_own_raises_is_raised_where_it_was_started():
    def leave() -> None:
        raise SystemExit(15)

    with pytest.raises(SystemExit):
        OwnThread(leave).start(60.0)


def test_a_call_in_a_thread_of_its_own_that_takes_too_long_is_given_up():
    gate = threading.Event()

    def stay() -> None:
        gate.wait()

    with pytest.raises(TimeoutError, match="more than 0 seconds"):
        OwnThread(stay).start(0.0)
    gate.set()


def test_what_the_call_lacked_is_its_error_also_where_it_fails_before_anybody_looks():
    dead: list[str] = []

    def call() -> None:
        dead.append("its gcs_server was killed")  # with Python's lock kept until the error
        raise RuntimeError("no port")

    with pytest.raises(ChildProcessError, match="its gcs_server was killed"):
        OwnThread(call).start(60.0, lambda: dead[0] if dead else None)
