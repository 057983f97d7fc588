"""The names of observers that a sweep may give.

A new observer is its own file in `observers/` and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpsearch.config.checks import InvalidKey, KeyPath, nearest, shown

__all__ = ["KNOWN_OBSERVERS", "OPTIONAL", "check_observer", "check_once"]

KNOWN_OBSERVERS: Mapping[str, str] = {
    "csv": "hpsearch.observers.csv_files:CsvObserver",
    "mlflow": "hpsearch.observers.mlflow_runs:MLflowObserver",
    "tensorboard": "hpsearch.observers.tensorboard.observer:TensorBoardObserver",
    "wandb": "hpsearch.observers.wandb_runs:WandbObserver",
}
"""Names to what makes each: called with the `Observed`. Imported when it is asked for."""

OPTIONAL = frozenset({"mlflow", "wandb"})
"""Those that need the package of the same name, which hpsearch installs only as the extra of that name."""


def check_observer(name: object, key: KeyPath) -> str:
    """Take the name of an observer, or an import path; the path itself is followed when the sweep is run.

    Raises:
        InvalidKey: It is neither.
    """
    if isinstance(name, str) and (name in KNOWN_OBSERVERS or _is_path(name)):
        return name
    advice = nearest(name, KNOWN_OBSERVERS) if isinstance(name, str) else ""
    if isinstance(name, type):
        advice = f'give an instance of it, or its path: "{name.__module__}:{name.__qualname__}"'
    raise InvalidKey(key, f"must be the name of an observer, or package.module:Class, got {shown(name)}", advice)


def check_once(names: Sequence[object], key: KeyPath) -> None:
    """See that no observer is named twice: each would write where the other does.

    Raises:
        InvalidKey: One is.
    """
    for place, name in enumerate(names):
        if isinstance(name, str) and name in names[:place]:
            raise InvalidKey(
                (*key, place), f"must be another than those before it, but {name} is one of them", "once is enough"
            )


def _is_path(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])
