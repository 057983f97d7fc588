"""What of Ray isn't started for a search on one machine, and what is noted of the rest."""

from __future__ import annotations

import signal
import subprocess

import pytest

pytestmark = pytest.mark.ray


def test_the_ray_that_is_pinned_has_all_that_isnt_started_and_has_it_again_afterwards():
    from ray._private import ray_constants, services
    from ray._private.node import Node

    from hpsearch.backends.ray.local_ray import lean_start

    places = [(Node, name) for name in ("start_monitor", "start_log_monitor", "start_api_server")]
    places += [(services, "get_node"), (services, "start_ray_process"), (ray_constants, "ENABLE_RAY_CLUSTER")]
    given = [getattr(*place) for place in places]
    with lean_start():
        assert not set(given) & {getattr(*place) for place in places}
    assert [getattr(*place) for place in places] == given


def test_a_ray_without_them_starts_as_it_does_by_itself(monkeypatch):
    from ray._private.node import Node

    from hpsearch.backends.ray.local_ray import lean_start

    monkeypatch.delattr(Node, "start_monitor")
    with lean_start():
        assert not hasattr(Node, "start_monitor")
    assert not hasattr(Node, "start_monitor")


def test_a_node_that_cannot_be_looked_for_is_asked_for_as_ray_does_by_itself(monkeypatch):
    from ray._private import services, state

    from hpsearch.backends.ray.local_ray import lean_start

    monkeypatch.setattr(services, "get_node", lambda address, node: (address, node))
    monkeypatch.delattr(state, "GlobalState")
    with lean_start():
        assert services.get_node("nowhere:1", "node") == ("nowhere:1", "node")


@pytest.mark.parametrize(
    ("script", "told"),
    [("kill -KILL $$", "its raylet was killed by SIGKILL"), ("exit 3", "its raylet ended with exit code 3")],
)
def test_a_process_of_rays_that_ends_while_ray_starts_is_named(script, told):
    from hpsearch.backends.ray.local_ray import RayProcesses

    processes = RayProcesses()
    assert processes.died() is None
    with subprocess.Popen(["sleep", "1000"]) as lives, subprocess.Popen(["sh", "-c", script]) as dies:
        processes.started("gcs_server", lives)
        processes.started("raylet", dies)
        dies.wait()
        assert processes.died() == told
        lives.send_signal(signal.SIGKILL)


def test_a_node_that_is_long_in_coming_is_waited_for(monkeypatch):
    """Ray itself gives it half a minute, which is too short where the machine is busy."""
    from ray._private import services, state

    from hpsearch.backends.ray.local_ray import lean_start

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
