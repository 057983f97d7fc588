"""The names of the built-in observers.

To add an observer, add its file to `observers/` and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpsearch.config.checks import InvalidKey, KeyPath, nearest, shown
from hpsearch.config.import_paths import is_import_path

KNOWN_OBSERVERS: Mapping[str, str] = {
    "csv": "hpsearch.observers.csv_files:CsvObserver",
    "mlflow": "hpsearch.observers.mlflow_runs:MLflowObserver",
    "tensorboard": "hpsearch.observers.tensorboard.observer:TensorBoardObserver",
    "wandb": "hpsearch.observers.wandb_runs:WandbObserver",
}
"""Name to the import path of a factory, which is called with the `Observed`. Factories are imported when used."""

OPTIONAL = frozenset({"mlflow", "wandb"})
"""Observers that need the package, and the extra of hpsearch, of the same name."""


def check_observer(name: object, key: KeyPath) -> str:
    """Return the name or import path of an observer. The path is imported when the sweep runs.

    Raises:
        InvalidKey: The value is neither.
    """
    if isinstance(name, str) and (name in KNOWN_OBSERVERS or is_import_path(name)):
        return name
    advice = nearest(name, KNOWN_OBSERVERS) if isinstance(name, str) else ""
    if isinstance(name, type):
        advice = f'give an instance of it, or its path: "{name.__module__}:{name.__qualname__}"'
    raise InvalidKey(key, f"must be the name of an observer, or package.module:Class, got {shown(name)}", advice)


def check_once(names: Sequence[object], key: KeyPath) -> None:
    """Check that no observer is named twice, since both would write to the same files.

    Raises:
        InvalidKey: An observer is named twice.
    """
    for index, name in enumerate(names):
        if isinstance(name, str) and name in names[:index]:
            raise InvalidKey(
                (*key, index), f"must differ from those before it, but {name} is one of them", "once is enough"
            )
