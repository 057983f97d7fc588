"""Find the simulation that a sweep's trainable names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpsearch.config.import_paths import import_object
from hpsearch.errors import SweepError
from hpsearch.simulation.simulation import Simulation
from hpsearch.sweep.table_name import is_table

__all__ = ["find_simulation"]


def find_simulation(trainable: str | Callable[..., Any] | Simulation | None, folders: Sequence[str]) -> Simulation:
    """Return a new simulation.

    Args:
        trainable: The path of a table's description, the import path of a subclass of `Curves` or `Steps`, such a
            class, or an instance.
        folders: Where relative paths and modules are searched for.

    Raises:
        SweepError: It is something else, or can't be loaded.
    """
    if isinstance(trainable, str):
        if is_table(trainable):
            from hpsearch.simulation.table_file import read_table

            return read_table(trainable, folders)
        found = import_object(trainable, "trainable", SweepError, folders)
    else:
        found = trainable
    if isinstance(found, type) and issubclass(found, Simulation):
        try:
            return found()
        except TypeError as error:
            raise SweepError(
                f"a simulation must be a class that can be made without arguments, with all of its methods, but "
                f"{found.__name__} isn't: {error}"
            ) from error
    if isinstance(found, Simulation):
        return found
    named = "a script" if trainable is None else trainable if isinstance(trainable, str) else repr(trainable)
    raise SweepError(
        f"the simulated backend trains nothing: it takes a table (trainable: curves.yaml) or a class derived from "
        f"hpsearch.Curves or hpsearch.Steps, got {named}. What a sweep would run, `hpsearch plan` shows"
    )
