"""What of Ray isn't started for a search on one machine, what is noted of the rest, and the thread that starts it."""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest

from hpsearch.backends.ray.local_ray import OwnThread, first_dead, lean_start


@pytest.mark.ray
def test_the_ray_that_is_pinned_has_all_that_isnt_started_and_has_it_again_afterwards():
    from ray._private import ray_constants, services
    from ray._private.node import Node

    places = [(Node, name) for name in ("start_monitor", "start_log_monitor", "start_api_server")]
    places += [(services, "get_node"), (services, "start_ray_process"), (ray_constants, "ENABLE_RAY_CLUSTER")]
    given = [getattr(*place) for place in places]
    with lean_start():
        assert not set(given) & {getattr(*place) for place in places}
    assert [getattr(*place) for place in places] == given


@pytest.mark.ray
def test_a_ray_without_them_starts_as_it_does_by_itself(monkeypatch):
    from ray._private.node import Node

    monkeypatch.delattr(Node, "start_monitor")
    with lean_start():
        assert not hasattr(Node, "start_monitor")
    assert not hasattr(Node, "start_monitor")


@pytest.mark.ray
def test_a_node_that_cannot_be_looked_for_is_asked_for_as_ray_does_by_itself(monkeypatch):
    from ray._private import services, state

    monkeypatch.setattr(services, "get_node", lambda address, node: (address, node))
    monkeypatch.delattr(state, "GlobalState")
    with lean_start():
        assert services.get_node("nowhere:1", "node") == ("nowhere:1", "node")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("script", "told"),
    [("kill -KILL $$", "its raylet was killed by SIGKILL"), ("exit 3", "its raylet ended with exit code 3")],
)
def test_a_process_of_rays_that_ends_while_ray_starts_is_named(script, told):
    assert first_dead([]) is None
    with subprocess.Popen(["sleep", "1000"]) as lives, subprocess.Popen(["sh", "-c", script]) as dies:
        dies.wait()
        assert first_dead([("gcs_server", lives), ("raylet", dies)]) == told
        lives.send_signal(signal.SIGKILL)


@pytest.mark.ray
def test_a_node_that_is_long_in_coming_is_waited_for(monkeypatch):
    """Ray itself gives it half a minute, which is too short where the machine is busy."""
    from ray._private import services, state

    looks: list[int] = []

    class Slow:
        def _initialize_global_state(self, options):
            assert options == "options"

        def node_table(self):
            looks.append(1)
            return [{"NodeID": "node"}] if len(looks) == 3 else []

    monkeypatch.setattr(state, "GlobalState", Slow)
    monkeypatch.setattr(services, "_get_gcs_client_options", lambda address: "options")
    monkeypatch.setattr(services, "get_node", lambda address, node: (address, node, len(looks)))
    with lean_start():
        assert services.get_node("here:1", "node") == ("here:1", "node", 3)


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
