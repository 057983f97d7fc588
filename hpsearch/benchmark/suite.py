"""A suite: tasks (recorded tables), the common keys of their sweeps, and the methods to compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpsearch.config.checks import (
    InvalidKey,
    InvalidKeys,
    KeyPath,
    at_least,
    integer,
    nearest,
    number,
    plain,
    shown,
    text,
)
from hpsearch.config.import_paths import table_and_task
from hpsearch.errors import SweepError
from hpsearch.objective import without_targets
from hpsearch.schedulers import KNOWN as SCHEDULERS
from hpsearch.searchers import KNOWN as SEARCHERS
from hpsearch.searchers import searcher_named
from hpsearch.simulation.table_file import table_digest
from hpsearch.sweep.auto import AUTO
from hpsearch.sweep.document import read_document
from hpsearch.sweep.file import sweep_from_mapping
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.reader import KeyReader, Kind, listed
from hpsearch.sweep.sweep import Sweep

_OF_METHODS = ("method", "early_terminate", "max_iter", "run_cap", "trainable", "limits", "resources", "seed", "name")
"""Keys of a sweep that are set by methods, tasks and the budget, not by the suite's `sweep`."""

_OF_ALL = ("trainable", "limits", "resources", "seed", "name", "observers")
"""Keys of a sweep that methods can't set."""

_ENDLESS = 1_000_000
"""A number of trials that no budget reaches."""


@dataclass(frozen=True)
class Suite:
    """The methods and tasks to compare. Plain data, so that it can be sent to other processes."""

    name: str
    path: str
    tasks: tuple[str, ...]
    """Descriptions of tables, relative to the suite's file."""
    sweep: Mapping[str, Any]
    """Keys of a sweep file that all runs share."""
    max_iter: int
    """Iterations of a full training."""
    budgets: tuple[float, ...] = (10.0, 25.0, 50.0)
    """Full-training equivalents at which methods are compared, rising; runs end at the last."""
    hit: float = 0.01
    """Fraction of the rows that count as best. A report as good as their final values is a hit."""
    methods: Mapping[str, Mapping[str, Any]] | None = None
    """Additional methods: names to keys of a sweep file."""
    seeds: int = 10
    learning_seeds: int | None = None
    """Number of seeds for methods that learn, whose runs take longer; None: `seeds`."""
    workers: tuple[int, ...] = (4,)
    data: Path | None = None
    """Folder of the tables' files, if they aren't next to their descriptions."""

    @cached_property
    def known(self) -> Mapping[str, Mapping[str, Any]]:
        """Method name to its keys of a sweep file, without aliases.

        Left out are grid search, methods that fork (tables don't have such trainings), and methods that stop running
        trials (they have no default bands). Searchers run trials to the end, or use their own scheduler. Schedulers are
        combined with random search.
        """
        kinds = {name: early.capabilities for name, early in SCHEDULERS.items()}
        judging = [name for name, capabilities in kinds.items() if not (capabilities.forks or capabilities.live)]
        searchers = {
            name: {"method": name, "max_iter": self.max_iter}
            for name, searcher in SEARCHERS.items()
            if name != "grid" and searcher.known_as is None and searcher.over in (None, *judging)
        }
        schedulers = {name: {"early_terminate": {"type": name}} for name in judging}
        auto = {AUTO: {"method": AUTO, "max_iter": self.max_iter}}
        return {**searchers, **schedulers, **auto, **(self.methods or {})}

    @cached_property
    def able(self) -> list[str]:
        """The methods that can search the suite's space."""

        def is_able(method: str) -> bool:
            try:
                self.sweep_of(method, self.tasks[0], 0, max(self.workers), 1.0)
            except SweepError:
                return method in (self.methods or {})  # so that mistakes in its keys are reported
            return True

        return [method for method in self.known if is_able(method)]

    @cached_property
    def template(self) -> Sweep:
        """A sweep with the metric and the parameters that all runs share."""
        return self.sweep_of("random", self.tasks[0], 0, max(self.workers), 1.0)

    def sweep_of(self, method: str, task: str, seed: int, workers: int, seconds: float) -> Sweep:
        """Return the sweep of one run.

        Args:
            method: Name of the method.
            task: One of `tasks`.
            seed: The sweep's seed.
            workers: Number of virtual workers.
            seconds: Virtual time after which the run ends.

        Raises:
            SweepError: The keys of the method and the suite aren't a valid sweep.
        """
        keys: dict[str, Any] = {"method": "random", **self.sweep, **self.known[method]}
        early = keys.get("early_terminate")
        if isinstance(early, Mapping):
            keys["early_terminate"] = {"max_iter": self.max_iter, **early}
        elif early is None:
            keys.setdefault("max_iter", self.max_iter)
        keys |= {"trainable": self.trainable(task), "seed": seed, "observers": []}
        keys.setdefault("run_cap", _ENDLESS)
        try:
            sweep = sweep_from_mapping(keys, name=f"{self.name} {method}")
        except (InvalidKey, InvalidKeys) as error:
            raise SweepError(f"{self.path}: method {method}: {error}") from None
        if sweep.objective.joint:
            raise SweepError(f"{self.path}: method {method}: one metric must decide, without outcome_constraints")
        limits = Limits(max_time=seconds, max_failures="none")
        metric = without_targets(sweep.objective.goals)  # each run continues to the last budget
        return replace(sweep, metric=metric, limits=limits, resources=Resources(workers))

    def seeds_of(self, method: str) -> int:
        """Return the number of runs of a method on each task."""
        named = str(self.known[method].get("method", "random"))
        learns = named == AUTO or searcher_named(named).capabilities.learns
        return self.learning_seeds if learns and self.learning_seeds is not None else self.seeds

    def run_as(self, method: str) -> str:
        """Return the method whose runs are a method's runs: `auto` is the method that it chooses."""
        if self.known[method].get("method") != AUTO:
            return method
        sweep = self._anonymous(method)
        is_known = sweep.method in self.known and self._anonymous(sweep.method) == sweep
        return sweep.method if is_known else method

    def _anonymous(self, method: str) -> Sweep:
        return replace(self.sweep_of(method, self.tasks[0], 0, 1, 1.0), name="any", auto_reason=None)

    def trainable(self, task: str) -> str:
        """Return a task as the trainable of a sweep."""
        return str(Path(self.path).parent / task)

    def check(self, methods: Sequence[str]) -> None:
        """Check that the methods are known and define valid sweeps.

        Raises:
            SweepError: A method is unknown, or doesn't define a valid sweep.
        """
        self.check_names(methods)
        for method in methods:
            self.sweep_of(method, self.tasks[0], 0, max(self.workers), 1.0)

    def check_names(self, methods: Sequence[str]) -> None:
        """Check that the methods are known.

        Raises:
            SweepError: A method is unknown.
        """
        for method in methods:
            if method not in self.known:
                raise SweepError(f"{self.path}: there is no method {method}; {nearest(method, self.known)}")

    def digest(self, method: str, task: str) -> str:
        """Return a digest of everything that a run depends on, so that outdated results aren't reused."""
        file, _ = table_and_task(task)
        if file not in self._tables:
            self._tables[file] = table_digest(self.trainable(file), self.data)
        content = [self.sweep, self.known[method], self.max_iter, self.budgets[-1], self.hit, self._tables[file]]
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()

    @cached_property
    def _tables(self) -> dict[str, str]:
        """Description to the digest of its table, computed on demand."""
        return {}


def load_suite(path: Path, data: Path | None = None) -> Suite:
    """Read a suite's file; `data` is the folder of the tables' files, if they aren't next to their descriptions.

    Raises:
        SweepError: The file can't be read, or a key is wrong; the message names file, line and key.
    """
    document = read_document(path, "suite")
    kinds: Mapping[str, Kind[Any]] = {
        "name": text,
        "tasks": partial(_files, "task"),
        "sweep": _sweep,
        "max_iter": partial(at_least, 1, integer),
        "budgets": _budgets,
        "hit": _fraction,
        "methods": _methods,
        "seeds": partial(at_least, 1, integer),
        "learning_seeds": partial(at_least, 1, integer),
        "workers": _workers,
    }
    required = {
        "tasks": "tasks: [table.yaml]",
        "sweep": "sweep: {metric: ..., parameters: ...}",
        "max_iter": "max_iter: 27",
    }
    try:
        keys = KeyReader(document.value, (), tuple(kinds))
        return keys.build(Suite, **{"name": path.stem, "path": str(path), "data": data, **keys.read(kinds, required)})
    except (InvalidKey, InvalidKeys) as error:
        raise document.located(error) from None


def load_suites(path: Path, data: Path | None = None) -> list[Suite]:
    """Read a suite's file, or a file with relative paths of several: `families: [lcbench.yaml, taskset.yaml]`.

    Raises:
        SweepError: A file can't be read, or a key is wrong; the message names file, line and key.
    """
    document = read_document(path, "suite")
    if not isinstance(document.value, Mapping) or "families" not in document.value:
        return [load_suite(path, data)]
    try:
        keys = KeyReader(document.value, (), ("families",))
        read = keys.read({"families": partial(_files, "suite's file")}, {})
        files: Sequence[str] = keys.build(dict, **read)["families"]
        suites = [load_suite(path.parent / file, data) for file in files]
        if len({suite.name for suite in suites}) < len(suites):
            raise InvalidKey(("families",), "must have names that differ, as results are stored under them")
    except (InvalidKey, InvalidKeys) as error:
        raise document.located(error) from None
    return suites


def _files(what: str, value: object, key: KeyPath) -> tuple[str, ...]:
    files = tuple(text(item, (*key, index)) for index, item in enumerate(listed(value, key)))
    if not files or len(set(files)) < len(files):
        raise InvalidKey(key, f"must name at least one {what}, and each once")
    return files


def _sweep(value: object, key: KeyPath) -> dict[str, Any]:
    keys = _mapping(value, key)
    strange = next((name for name in keys if name in _OF_METHODS), None)
    if strange is not None:
        raise InvalidKey((*key, strange), "follows from methods, tasks and budgets, and must not be set here")
    return keys


def _methods(value: object, key: KeyPath) -> dict[str, dict[str, Any]]:
    methods = {text(name, key): _mapping(item, (*key, name)) for name, item in _mapping(value, key).items()}
    for name, keys in methods.items():
        strange = next((each for each in keys if each in _OF_ALL), None)
        if strange is not None:
            raise InvalidKey((*key, name, strange), "follows from tasks and budgets, and must not be set here")
    return methods


def _mapping(value: object, key: KeyPath) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidKey(key, f"must be a mapping, got {shown(value)}")
    return dict(plain(value, key))


def _budgets(value: object, key: KeyPath) -> tuple[float, ...]:
    budgets = tuple(number(item, (*key, index)) for index, item in enumerate(listed(value, key)))
    if not budgets or budgets[0] <= 0 or any(budget >= following for budget, following in pairwise(budgets)):
        raise InvalidKey(key, f"must be numbers of full trainings, more than 0 and rising, got {shown(value)}")
    return budgets


def _fraction(value: object, key: KeyPath) -> float:
    fraction = number(value, key)
    if not 0 < fraction < 1:
        raise InvalidKey(key, f"must be a share of the rows, between 0 and 1, got {fraction}")
    return fraction


def _workers(value: object, key: KeyPath) -> tuple[int, ...]:
    items = listed(value, key) if not isinstance(value, int) else [value]
    workers = tuple(at_least(1, integer, item, (*key, index)) for index, item in enumerate(items))
    if not workers or len(set(workers)) < len(workers):
        raise InvalidKey(key, f"must name at least one number of workers, and each once, got {shown(value)}")
    return workers
