"""Start a local Ray without what only a cluster, or a person who looks at one, has use for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ray._private import services, state
from ray._private.node import Node

__all__ = ["lean_start"]


def _nothing(node: Any) -> None: ...


def _no_dashboard(node: Any, **_: Any) -> None:
    node._webui_url = ""


_IN_PLACE: Mapping[str, Callable[..., None]] = {
    "start_monitor": _nothing,  # the autoscaler, with no machines to ask for
    "start_log_monitor": _nothing,  # it sends workers' output to a driver, which doesn't want it
    "start_api_server": _no_dashboard,  # one without pages, which `include_dashboard=False` still starts
}


_LOOK_SECONDS = 0.02
_LONGEST_SECONDS = 5.0
_GET_NODE = "get_node"
"""Ray's function that tells of the node that it has started; where that isn't there yet it sleeps for a second."""


@contextmanager
def lean_start() -> Iterator[None]:
    """Let `ray.init` start neither autoscaler nor log monitor nor dashboard.

    Together they take two seconds of work just when workers want to start, and the autoscaler another one until Ray
    kills it in the end. Nor does it sleep until the node is there. A Ray that has none of these methods starts as it
    does by itself.
    """
    with ExitStack() as ending:
        for name, method in _IN_PLACE.items():
            _put(ending, Node, name, method)
        _put(ending, services, _GET_NODE, _once_there(getattr(services, _GET_NODE, None)))
        yield


def _put(ending: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of Ray's until the end; nothing where Ray has none."""
    if hasattr(owner, name):
        ending.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)


def _once_there(get_node: Any) -> Callable[[str, str], Any]:
    """Ask for a node once it is there, or has been waited for for long enough."""

    def get(gcs_address: str, node_id: str) -> Any:
        with suppress(Exception):  # then Ray's own way is slower, and right
            known = state.GlobalState()
            known._initialize_global_state(services._get_gcs_client_options(gcs_address))
            deadline = time.monotonic() + _LONGEST_SECONDS
            while time.monotonic() < deadline and all(node["NodeID"] != node_id for node in known.node_table()):
                time.sleep(_LOOK_SECONDS)
        return get_node(gcs_address, node_id)

    return get
