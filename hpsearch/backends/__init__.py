"""Backends, which run segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hpsearch.backends.base import Backend
from hpsearch.backends.inline import InlineBackend
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.config.import_paths import import_object, is_table
from hpsearch.errors import SweepError
from hpsearch.simulation import Simulation
from hpsearch.sweep.sweep import Sweep
from hpsearch.trainable.metrics import names_reported

if TYPE_CHECKING:
    from hpsearch.serving.server import Listen

__all__ = ["BackendName", "find_simulation", "make_backend"]

BackendName = Literal["ray", "inline", "simulated", "agents"]


def make_backend(
    name: str,
    sweep: Sweep,
    trainable: str | Callable[..., Any] | Simulation | None = None,
    address: str | None = None,
    folders: Sequence[str] = (),
    listen: Listen | None = None,
) -> Backend:
    """Create a backend by name. Ray is imported only if it is requested.

    Args:
        name: `ray`, `inline`, `simulated` or `agents`.
        sweep: The sweep that it will run.
        trainable: The trainable; None: the one that the sweep names.
        address: A Ray cluster to join.
        folders: Folders in which simulations are searched for.
        listen: Where agents reach the driver by HTTP; None: by files in the study's directory.

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
    if name == "agents":
        from hpsearch.backends.agents.backend import AgentsBackend

        return AgentsBackend(sweep, listen)
    raise SweepError(f"backend must be ray, inline, simulated or agents, got {name!r}")


def _simulated(
    sweep: Sweep, trainable: str | Callable[..., Any] | Simulation | None, folders: Sequence[str]
) -> SimulatedBackend:
    workers = sweep.resources.workers
    if workers is None:
        raise SweepError("the simulated backend needs a number of workers, got none: --workers 4, or resources.workers")
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
    simulation.open(sweep.parameters, *names_reported(sweep.objective.names, sweep.resource))
    return SimulatedBackend(workers, simulation, epoch=time.time())


def find_simulation(trainable: str | Callable[..., Any] | Simulation | None, folders: Sequence[str]) -> Simulation:
    """Return a new simulation.

    Args:
        trainable: The path of a table's description, the import path of a subclass of `Curves` or `Steps`, such a
            class, or an instance.
        folders: Folders in which relative paths and modules are searched for.

    Raises:
        SweepError: The trainable is something else, or can't be loaded.
    """
    if isinstance(trainable, str):
        if is_table(trainable):
            from hpsearch.simulation.table_file import read_table

            return read_table(trainable, folders)
        target = import_object(trainable, "trainable", SweepError, folders)
    else:
        target = trainable
    if isinstance(target, type) and issubclass(target, Simulation):
        try:
            return target()
        except TypeError as error:
            raise SweepError(
                f"a simulation must be a class that can be made without arguments, with all of its methods, but "
                f"{target.__name__} isn't: {error}"
            ) from error
    if isinstance(target, Simulation):
        return target
    named = "a script" if trainable is None else trainable if isinstance(trainable, str) else repr(trainable)
    raise SweepError(
        f"the simulated backend trains nothing: it takes a table (trainable: curves.yaml) or a class derived from "
        f"hpsearch.Curves or hpsearch.Steps, got {named}. What a sweep would run, `hpsearch plan` shows"
    )
