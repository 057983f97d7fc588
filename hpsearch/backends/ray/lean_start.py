"""Start a local Ray without what only a cluster, or a person who looks at one, has use for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def lean_start() -> Iterator[None]:
    """Let `ray.init` start neither autoscaler nor log monitor nor dashboard.

    Together they take two seconds of work just when workers want to start, and the autoscaler another one until Ray
    kills it in the end. A Ray that has none of these methods starts as it does by itself.
    """
    given = {name: getattr(Node, name) for name in _IN_PLACE if hasattr(Node, name)}
    for name in given:
        setattr(Node, name, _IN_PLACE[name])
    try:
        yield
    finally:
        for name, method in given.items():
            setattr(Node, name, method)
