"""Searchers: they suggest configurations.

To add a searcher, write its file and add a line to `KNOWN` below, which sweep files and the Python API read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.config.import_paths import import_object
from hpsearch.errors import SweepError
from hpsearch.searchers.base import Observation, Past, Problem, Search, Searcher, SearcherCapabilities, Suggestion
from hpsearch.searchers.evolution import Evolution
from hpsearch.searchers.grid import GridSearcher
from hpsearch.searchers.optuna_samplers import BOHB, through_optuna
from hpsearch.searchers.random import RandomSearcher
from hpsearch.searchers.tried import TriedConfigurations

__all__ = [
    "BOHB",
    "KNOWN",
    "Evolution",
    "GridSearcher",
    "Observation",
    "Past",
    "Problem",
    "RandomSearcher",
    "Search",
    "Searcher",
    "SearcherCapabilities",
    "Suggestion",
    "TriedConfigurations",
    "refusals",
    "searcher_named",
]


class _Imported(Mapping[str, type[Searcher]]):
    """Imports a searcher when it is first used: importing SciPy alone takes longer than importing all of hpsearch."""

    def __init__(self, **paths: str) -> None:
        self._paths = paths

    def __getitem__(self, method: str) -> type[Searcher]:
        module, _, name = self._paths[method].partition(":")
        searcher: type[Searcher] = getattr(import_module(f".{module}", __name__), name)
        return searcher

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


KNOWN: Mapping[str, type[Searcher]] = _Imported(
    random="random:RandomSearcher",
    grid="grid:GridSearcher",
    qmc="qmc:QMC",
    tpe="optuna_samplers:TPE",
    bayes="optuna_samplers:Bayes",
    bohb="optuna_samplers:BOHB",
    gp="optuna_samplers:GP",
    cmaes="optuna_samplers:CmaEs",
    nsga2="optuna_samplers:NSGA2",
    evolution="evolution:Evolution",
    spectral="spectral:Spectral",
    pbt="pbt:PBTSearcher",
)
"""`method` of a sweep to its searcher."""


def searcher_named(method: str) -> type[Searcher]:
    """Return the searcher that a `method` names.

    Args:
        method: A known name, or the import path `package.module:Class` of a custom searcher or of an Optuna sampler.

    Raises:
        InvalidKey: There is no searcher of this name.
    """
    if method in KNOWN:
        return KNOWN[method]
    if method == "curves":
        problem = "must be another method than curves, which was removed as it found less than bohb on new tasks"
        raise InvalidKey((), problem, "write bohb, which also runs over asha, and remove search.options")
    if ":" not in method:
        close = nearest(method, KNOWN)
        advice = close if close.startswith("did") else ""
        raise InvalidKey((), f"must be one of {', '.join(KNOWN)}, or package.module:Class, got {method!r}", advice)
    try:
        imported = import_object(method, "method", SweepError, [str(Path.cwd())])
    except SweepError as error:
        raise InvalidKey((), str(error)) from error
    if isinstance(imported, type) and issubclass(imported, Searcher):
        if imported.capabilities.learns and imported.observe is Searcher.observe:
            raise InvalidKey((), f"must define `observe`, as its `capabilities.learns` is true, but {method} doesn't")
        return imported
    if isinstance(imported, type) and _is_sampler(imported):
        return through_optuna(method, imported)
    problem = f"must be a class derived from hpsearch.Searcher or a sampler of Optuna's, but {method} is {imported!r}"
    raise InvalidKey((), problem)


def refusals(problem: Problem) -> dict[str, str | None]:
    """Return the known methods, each with the reason why it can't search this problem, or None if it can."""
    reasons: dict[str, str | None] = {}
    for method, searcher in KNOWN.items():
        if searcher.capabilities.unsupported_key(problem.objective):
            reasons[method] = "learns from one number"
            continue
        try:
            searcher.check(replace(problem, settings=Search()))
        except InvalidKey as error:
            reasons[method] = str(InvalidKey(error.key[1:] if len(error.key) > 1 else (), error.problem))
        else:
            reasons[method] = None
    return reasons


def _is_sampler(cls: type) -> bool:
    """Return whether a class is derived from Optuna's `BaseSampler`, without importing Optuna."""
    return any(base.__module__.startswith("optuna.") and base.__name__ == "BaseSampler" for base in cls.__mro__)
