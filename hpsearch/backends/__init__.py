"""Where segments run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from hpsearch.backends.base import Backend
from hpsearch.backends.inline import InlineBackend
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.errors import SweepError
from hpsearch.simulation import Simulation
from hpsearch.simulation.find import find_simulation
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.table_name import is_table

__all__ = ["BackendName", "make_backend"]

BackendName = Literal["ray", "inline", "simulated"]


def make_backend(
    name: str,
    sweep: Sweep,
    trainable: str | Callable[..., Any] | Simulation | None = None,
    address: str | None = None,
    folders: Sequence[str] = (),
) -> Backend:
    """Create a backend by name. Ray is imported only if it is requested.

    Args:
        name: `ray`, `inline` or `simulated`.
        sweep: The sweep that it will run.
        trainable: The trainable; None: the one that the sweep names.
        address: A Ray cluster to join.
        folders: Where simulations are searched for.

    Raises:
        SweepError: There is no backend of this name, or it can't run this sweep.
    """
    resources = sweep.resources
    if name == "simulated":
        return _simulated(sweep, trainable, folders)
    if is_table(sweep.trainable):
        raise SweepError(
            f"trainable: {sweep.trainable} is a table of what was recorded, which the simulated backend plays back, "
            f"but the backend is {name}: run it with --backend simulated"
        )
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
    raise SweepError(f"backend must be ray, inline or simulated, got {name!r}")


def _simulated(
    sweep: Sweep, trainable: str | Callable[..., Any] | Simulation | None, folders: Sequence[str]
) -> SimulatedBackend:
    workers = sweep.resources.workers
    if workers is None:
        raise SweepError(
            "the simulated backend has as many workers as it is told, and none were: --workers 4, or resources.workers"
        )
    if sweep.unbounded and sweep.limits.max_time is None:
        raise SweepError(
            "run_cap: is required on the simulated backend, or limits.max_time, as its clock doesn't wait for anybody "
            "to stop the sweep"
        )
    simulation = find_simulation(trainable or sweep.trainable, folders)
    early = sweep.early_terminate
    if early is not None and early.capabilities.forks and not simulation.has_state:
        raise SweepError(
            f"early_terminate of type {early.kind} forks trials, whose params change while they train, but "
            f"{type(simulation).__name__} only knows what a training gives with its own params from the beginning: "
            "derive a simulation from hpsearch.Steps"
        )
    simulation.open(sweep.parameters, *sweep.objective.names)
    return SimulatedBackend(workers, simulation, epoch=time.time())
