"""Start a local Ray without the services that only a cluster needs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ray._private import ray_constants, services, state
from ray._private.node import Node

__all__ = ["LOOPBACK", "RayProcesses", "lean_start"]


def _nothing(node: Any) -> None: ...


def _no_dashboard(node: Any, **_: Any) -> None:
    node._webui_url = ""


_IN_PLACE: Mapping[str, Callable[..., None]] = {
    "start_monitor": _nothing,  # the autoscaler, with no machines to ask for
    "start_log_monitor": _nothing,  # it sends workers' output to the driver, which doesn't need it
    "start_api_server": _no_dashboard,  # one without pages, which `include_dashboard=False` still starts
}


_LOOK_SECONDS = 0.02
_GET_NODE = "get_node"
"""Ray's function that looks up the node that it has started; while there is none it sleeps for a second."""
_START_PROCESS = "start_ray_process"

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this in their environment Ray's processes listen on 127.0.0.1 alone, as they do on macOS. By default they listen
on all interfaces, whatever address their node has.
"""


class RayProcesses:
    """The processes that Ray has started."""

    def __init__(self) -> None:
        self._processes: list[tuple[str, Any]] = []

    def started(self, name: str, process: Any) -> None:
        """Record a process; `process` is its `Popen`."""
        self._processes.append((name, process))

    def died(self) -> str | None:
        """Return a message on the first that has ended; None if all run."""
        for name, process in list(self._processes):
            if (code := process.poll()) is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"its {name} {how}"
        return None


@contextmanager
def lean_start(seconds: float = 180.0) -> Iterator[RayProcesses]:
    """Have `ray.init` start no autoscaler, log monitor or dashboard, and listen on 127.0.0.1 alone.

    These take two seconds of CPU time just as workers start, and the autoscaler another one until Ray kills it at the
    end. Nor does Ray sleep until the node has registered. A Ray without these methods starts in its usual way.

    Args:
        seconds: How long the node may take to register.
    """
    processes = RayProcesses()
    with ExitStack() as ending:
        for name, method in _IN_PLACE.items():
            _put(ending, Node, name, method)
        _put(ending, services, _GET_NODE, _once_there(getattr(services, _GET_NODE, None), seconds))
        _put(ending, services, _START_PROCESS, _noting(getattr(services, _START_PROCESS, None), processes))
        if not LOOPBACK.keys() & os.environ.keys():  # else it is the user's choice
            _put(ending, ray_constants, "ENABLE_RAY_CLUSTER", False)
        yield processes


def _put(ending: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of Ray's until the end, if Ray has it."""
    if hasattr(owner, name):
        ending.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def _noting(start_process: Any, processes: RayProcesses) -> Callable[..., Any]:
    """Start a process as Ray does, and record it."""

    def start(command: Any, process_type: str, *arguments: Any, **options: Any) -> Any:
        info = start_process(command, process_type, *arguments, **options)
        processes.started(process_type, info.process)
        return info

    return start


def _once_there(get_node: Any, seconds: float) -> Callable[[str, str], Any]:
    """Look up a node once it has registered, or after the limit."""

    def get(gcs_address: str, node_id: str) -> Any:
        with suppress(Exception):  # then Ray's own way is slower, but correct
            known = state.GlobalState()
            known._initialize_global_state(services._get_gcs_client_options(gcs_address))
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and all(node["NodeID"] != node_id for node in known.node_table()):
                time.sleep(_LOOK_SECONDS)
        return get_node(gcs_address, node_id)

    return get
