"""Where segments run."""

from __future__ import annotations

from typing import Literal

from hpsearch.backends.base import Backend
from hpsearch.backends.inline import InlineBackend
from hpsearch.errors import SweepError
from hpsearch.sweep.sweep import Resources

__all__ = ["BackendName", "make_backend"]

BackendName = Literal["ray", "inline"]


def make_backend(name: str, resources: Resources, address: str | None = None) -> Backend:
    """Make a backend by its name; Ray is imported only here, when it is asked for.

    Raises:
        SweepError: There is no backend of this name.
    """
    if name == "inline":
        if resources.workers_per_trial > 1:
            raise SweepError(
                f"resources.workers_per_trial is {resources.workers_per_trial}, but the inline backend is this one "
                "process: run it on ray, or lower workers_per_trial"
            )
        if resources.fresh_process:
            raise SweepError(
                "resources.fresh_process is true, but the inline backend is this one process: run it on ray, or set "
                "fresh_process to false"
            )
        return InlineBackend()
    if name == "ray":
        from hpsearch.backends.ray.backend import RayBackend

        return RayBackend(resources, address)
    raise SweepError(f"backend must be ray or inline here, got {name!r}")
