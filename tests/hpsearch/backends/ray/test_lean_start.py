"""What of Ray isn't started for a search on one machine."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ray


def test_the_ray_that_is_pinned_has_all_that_isnt_started_and_has_it_again_afterwards():
    from ray._private.node import Node

    from hpsearch.backends.ray.lean_start import lean_start

    names = ("start_monitor", "start_log_monitor", "start_api_server")
    given = [getattr(Node, name) for name in names]
    with lean_start():
        assert not set(given) & {getattr(Node, name) for name in names}
    assert [getattr(Node, name) for name in names] == given


def test_a_ray_without_them_starts_as_it_does_by_itself(monkeypatch):
    from ray._private.node import Node

    from hpsearch.backends.ray.lean_start import lean_start

    monkeypatch.delattr(Node, "start_monitor")
    with lean_start():
        assert not hasattr(Node, "start_monitor")
    assert not hasattr(Node, "start_monitor")
