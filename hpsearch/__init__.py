"""hpsearch: hyperparameter and architecture search for PyTorch.

Importing the package loads neither torch nor Ray. A public name's module is imported when the name is first used, so
that a command that only reads a study starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpsearch.errors import (
        BackendError,
        CheckpointError,
        HpsearchError,
        HpsearchWarning,
        JournalError,
        SearcherError,
        StopSearch,
        StudyInUseError,
        SweepError,
        TellError,
        TrainableError,
    )
    from hpsearch.results.comparison import Comparison, compare
    from hpsearch.results.rerun import Configuration, Rerun
    from hpsearch.results.study import BestTrial, Study, load
    from hpsearch.run.api import change, extend, rerun, search
    from hpsearch.run.ask_tell import AskTell
    from hpsearch.run.telling import AskedTrial
    from hpsearch.schedulers.asha import ASHA
    from hpsearch.schedulers.bands import Bands
    from hpsearch.schedulers.early_terminate import EarlyTerminate
    from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
    from hpsearch.schedulers.median import MedianStopping
    from hpsearch.schedulers.pasha import PASHA
    from hpsearch.schedulers.pbt import PBT
    from hpsearch.searchers import Searcher
    from hpsearch.simulation import Curve, Curves, Steps
    from hpsearch.space import (
        Categorical,
        Cell,
        Chain,
        Choice,
        Constant,
        Derived,
        IntUniform,
        LogIntUniform,
        LogNormal,
        LogUniform,
        Normal,
        Ordinal,
        Repeat,
        Space,
        Uniform,
        When,
        ZeroOrLogUniform,
    )
    from hpsearch.sweep.file import load_sweep
    from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Parallel, Repeats, Resources, Scaling, Search
    from hpsearch.sweep.sweep import Sweep
    from hpsearch.trainable.current import current_trial
    from hpsearch.trainable.restoring import restore
    from hpsearch.trainable.running_trial import RunningTrial
    from hpsearch.trainable.trying_out import try_out
    from hpsearch.trial import TrialRow

__version__ = "0.1.0"

__all__ = [
    "ASHA",
    "PASHA",
    "PBT",
    "AskTell",
    "AskedTrial",
    "BackendError",
    "Bands",
    "BestTrial",
    "Categorical",
    "Cell",
    "Chain",
    "CheckpointError",
    "Checkpoints",
    "Choice",
    "Comparison",
    "Configuration",
    "Constant",
    "Curve",
    "Curves",
    "Derived",
    "EarlyTerminate",
    "HpsearchError",
    "HpsearchWarning",
    "Hyperband",
    "IntUniform",
    "JournalError",
    "Limits",
    "LogIntUniform",
    "LogNormal",
    "LogUniform",
    "MedianStopping",
    "Metric",
    "Normal",
    "Ordinal",
    "Parallel",
    "Repeat",
    "Repeats",
    "Rerun",
    "Resources",
    "RunningTrial",
    "Scaling",
    "Search",
    "Searcher",
    "SearcherError",
    "Space",
    "Steps",
    "StopSearch",
    "Study",
    "StudyInUseError",
    "SuccessiveHalving",
    "Sweep",
    "SweepError",
    "TellError",
    "TrainableError",
    "TrialRow",
    "Uniform",
    "When",
    "ZeroOrLogUniform",
    "change",
    "compare",
    "current_trial",
    "extend",
    "load",
    "load_sweep",
    "rerun",
    "restore",
    "search",
    "try_out",
]

_PLACES = {
    "hpsearch.errors": (
        "BackendError CheckpointError HpsearchError HpsearchWarning JournalError SearcherError StopSearch "
        "StudyInUseError SweepError TellError TrainableError"
    ),
    "hpsearch.results.comparison": "Comparison compare",
    "hpsearch.results.rerun": "Configuration Rerun",
    "hpsearch.results.study": "BestTrial Study load",
    "hpsearch.run.api": "change extend rerun search",
    "hpsearch.run.ask_tell": "AskTell",
    "hpsearch.run.telling": "AskedTrial",
    "hpsearch.schedulers.asha": "ASHA",
    "hpsearch.schedulers.bands": "Bands",
    "hpsearch.schedulers.early_terminate": "EarlyTerminate",
    "hpsearch.schedulers.halving": "Hyperband SuccessiveHalving",
    "hpsearch.schedulers.median": "MedianStopping",
    "hpsearch.schedulers.pasha": "PASHA",
    "hpsearch.schedulers.pbt": "PBT",
    "hpsearch.searchers": "Searcher",
    "hpsearch.simulation": "Curve Curves Steps",
    "hpsearch.space": (
        "Categorical Cell Chain Choice Constant Derived IntUniform LogIntUniform LogNormal LogUniform Normal "
        "Ordinal Repeat Space Uniform When ZeroOrLogUniform"
    ),
    "hpsearch.sweep.file": "load_sweep",
    "hpsearch.sweep.parts": "Checkpoints Limits Metric Parallel Repeats Resources Scaling Search",
    "hpsearch.sweep.sweep": "Sweep",
    "hpsearch.trainable.trying_out": "try_out",
    "hpsearch.trainable.current": "current_trial",
    "hpsearch.trainable.restoring": "restore",
    "hpsearch.trainable.running_trial": "RunningTrial",
    "hpsearch.trial": "TrialRow",
}
"""Module to the public names that it defines."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}


if not TYPE_CHECKING:  # otherwise a type checker would accept a misspelled name, as `Any`

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
