"""How several workers train one trial: a sweep's section `parallel`, and a trial's parameters of that name over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hpsearch.config.checks import InvalidKey, KeyPath, nearest
from hpsearch.config.settings import AtLeast, Count, Settings, settings_fields
from hpsearch.space import Choice, Derived, Distribution, Space
from hpsearch.space.distribution import Numeric
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from hpsearch.schedulers.early_terminate import EarlyTerminate

__all__ = ["ASYNCHRONOUS", "KEYS", "SECTION", "STRATEGY", "Parallel", "Strategies"]

SECTION = "parallel"

_PREFIX = f"{SECTION}."

STRATEGY = f"{SECTION}.strategy"
"""Flat name of the parameter that says which strategy a trial has."""

_Strategy = Literal[
    "allreduce", "parameter_server", "downpour", "local_sgd", "average_once", "hogwild", "locked", "pipeline", "tensor"
]

KEYS: Mapping[str, Sequence[str]] = {
    "allreduce": (),
    "parameter_server": ("servers",),
    "downpour": ("servers", "n_push", "n_fetch", "max_delay", "warm_start"),
    "local_sgd": ("period", "momentum"),
    "average_once": (),
    "hogwild": (),
    "locked": (),
    "pipeline": ("micro_batches", "schedule"),
    "tensor": (),
}
"""By strategy, the keys that are its own. Trainers read them; here they are checked before anything runs."""

ASYNCHRONOUS = frozenset({"downpour", "hogwild", "locked"})
"""Strategies whose ranks don't wait for each other: the same trial gives other numbers each time."""


@dataclass(frozen=True)
class Parallel(Settings):
    """How several workers train one trial. A Trainer keeps to it; other trainables find it as `trial.parallel`."""

    strategy: _Strategy = "allreduce"
    """[How the workers of a trial synchronize](parallel.md), and whose weights count."""
    servers: Count | None = None
    """`parameter_server`, `downpour`: how many of a trial's workers store weights for the others; none: 1."""
    n_push: Count | None = None
    """`downpour`: steps between two pushes of gradients; none: 1."""
    n_fetch: Count | None = None
    """`downpour`: steps between two fetches of weights; none: 1."""
    max_delay: Annotated[int, AtLeast(0)] | None = None
    """`downpour`: steps by which a worker may be ahead of the slowest one; none: unlimited."""
    warm_start: Annotated[int, AtLeast(0)] | None = None
    """`downpour`: initial epochs in which workers take turns; none: 0."""
    period: Count | None = None
    """`local_sgd`: steps of each worker between two averages; none: 8."""
    momentum: Literal["keep", "average"] | None = None
    """`local_sgd`: how averages treat the optimizer's state; none: `keep`."""
    micro_batches: Count | None = None
    """`pipeline`: number of parts of a step's rows; none: twice the workers."""
    schedule: Literal["gpipe", "1f1b"] | None = None
    """`pipeline`: order of their forward and backward passes; none: `gpipe`."""


@dataclass(frozen=True)
class _Given:
    """A parameter of a sweep that says how a trial is parallel."""

    path: KeyPath
    """In the sweep."""
    key: str
    strategy: str | None
    """Of which it is the branch; None: it stands for all."""
    holds: Distribution | Structure

    @property
    def values(self) -> Sequence[Value]:
        """All that it may be, or the least and the greatest; none where it follows from others."""
        if isinstance(self.holds, Choice):
            return list(self.holds.branches)
        assert isinstance(self.holds, Distribution)
        every = self.holds.every_value()
        if every is not None:
            return every
        return self.holds.ends if isinstance(self.holds, Numeric) else ()


@dataclass(frozen=True)
class Strategies:
    """How the trials of a sweep are parallel: the section, and over it the parameters `parallel.*`.

    A group of that name is the user's own where there is neither the section nor `parallel.strategy`.
    """

    section: Parallel | None
    parameters: Space

    @cached_property
    def _given(self) -> Sequence[_Given]:
        found = list(_given(self.parameters.declared, ()))
        return found if self.section is not None or any(one.key == "strategy" for one in found) else ()

    @property
    def named(self) -> bool:
        """Whether the sweep says anything of it."""
        return self.section is not None or bool(self._given)

    @cached_property
    def possible(self) -> Sequence[str]:
        """The strategies that trials may have, in the order of the docs."""
        found = {str(value) for one in self._given if one.key == "strategy" for value in one.values}
        if STRATEGY not in self.parameters.columns(()):
            found.add((self.section or Parallel()).strategy)
        return [strategy for strategy in KEYS if strategy in found]

    @cached_property
    def asynchronous(self) -> Sequence[str]:
        """Those of them that give other numbers each time."""
        return [strategy for strategy in self.possible if strategy in ASYNCHRONOUS]

    @cached_property
    def fixed(self) -> Sequence[str]:
        """Those of them that train on a fixed number of workers, which is part of the result."""
        return [strategy for strategy in self.possible if strategy != "allreduce"]

    def of(self, params: Params) -> dict[str, Any]:
        """Give what one trial is told, the strategy and what else is given; empty where the sweep says nothing.

        Args:
            params: The trial's, by flat names.
        """
        if not self.named:
            return {}
        told: dict[str, Any] = asdict(self.section or Parallel())
        own = {name[len(_PREFIX) :]: value for name, value in params.items() if name.startswith(_PREFIX)}
        told |= {key: value for key, value in own.items() if "." not in key}
        branch = f"strategy.{told['strategy']}."
        told |= {key.removeprefix(branch): value for key, value in own.items() if key.startswith(branch)}
        return {key: value for key, value in told.items() if value is not None}

    def is_asynchronous(self, params: Params) -> bool:
        """Say whether a trial gives other numbers each time."""
        return bool(self.asynchronous) and self.of(params).get("strategy") in ASYNCHRONOUS

    def check(self, width: int, widest: int, early: EarlyTerminate | None) -> None:
        """Check that every strategy that trials may have can be used beside the rest of the sweep.

        Args:
            width: How many workers a trial has, at least.
            widest: How many it may get.
            early: What ends some of them early.

        Raises:
            InvalidKey: One can't, or a key has no meaning.
        """
        for one in sorted(self._given, key=lambda one: one.key != "strategy"):  # what others mean hangs on it
            self._check_one(one)
        if not self.named:
            return
        for key, value in asdict(self.section or Parallel()).items():
            if value is not None and key != "strategy":
                self._check_meaning((SECTION, key), key, self.possible)
        if self.fixed:
            self._check_width(width, widest)
        if early is not None and "average_once" in self.possible:
            raise InvalidKey(
                ("early_terminate",),
                f"must not stand where {STRATEGY} may be average_once, got {early.kind}: workers are averaged once, at "
                "the end, which a trial that ends early doesn't reach",
                "remove it, or take another strategy, such as local_sgd",
            )

    def _check_one(self, given: _Given) -> None:
        known = settings_fields(Parallel)
        if given.key not in known or (given.strategy is not None and given.key == "strategy"):
            raise InvalidKey(given.path, f"isn't a known key of {SECTION}", nearest(given.key, known))
        if isinstance(given.holds, Structure) and not (given.key == "strategy" and isinstance(given.holds, Choice)):
            raise InvalidKey(given.path, f"must be a parameter with one value, got a {given.holds.kind}")
        if given.key == "strategy" and isinstance(given.holds, Derived):
            raise InvalidKey(given.path, "must say which strategies there may be, got a derived value", "give values")
        for value in given.values:
            try:
                known[given.key].check(value, given.path)
            except InvalidKey as error:
                own = "a parameter of your own must be called otherwise" if given.key == "strategy" else ""
                raise InvalidKey(error.key, error.problem, error.advice or own) from None
        if given.key != "strategy":
            self._check_meaning(given.path, given.key, self.possible if given.strategy is None else [given.strategy])

    def _check_meaning(self, path: KeyPath, key: str, strategies: Sequence[str]) -> None:
        """Check that one of these strategies has this key."""
        if not any(key in KEYS[strategy] for strategy in strategies):
            owners = " and ".join(strategy for strategy, keys in KEYS.items() if key in keys)
            problem = f"has no meaning where {STRATEGY} is {' or '.join(strategies)}"
            raise InvalidKey(path, problem, f"it belongs to {owners}")

    def _check_width(self, width: int, widest: int) -> None:
        servers = max(self._most_servers(strategy) for strategy in self.fixed)
        least = max(2, servers + 1)
        if width < least:
            where = f"where {STRATEGY} may be {' or '.join(self.fixed)}"
            if servers > 1:
                where = f"where {SECTION}.servers may be {servers}, which are among a trial's workers"
            problem = f"must be at least {least} {where}, got {width}"
            raise InvalidKey(("resources", "workers_per_trial"), problem, f"resources: {{workers_per_trial: {least}}}")
        if widest > width:
            raise InvalidKey(
                ("resources", "max_workers_per_trial"),
                f"must not be given where {STRATEGY} may be {' or '.join(self.fixed)}: only allreduce goes on with "
                f"another number of workers; got {widest}",
                "remove it",
            )

    def _most_servers(self, strategy: str) -> int:
        """Give how many servers a trial of this strategy may have."""
        if "servers" not in KEYS[strategy]:
            return 0
        own = [one for one in self._given if one.key == "servers" and one.strategy in (None, strategy)]
        searched = [value for one in own for value in one.values if isinstance(value, int)]
        section = None if self.section is None else self.section.servers
        return max([*searched, section or 1])


def _given(declared: Sequence[Declared], around: KeyPath) -> Iterator[_Given]:
    """Give the parameters `parallel.*` among what was declared at the top, and in groups there."""
    for one in declared:
        path = (*around, *one.path)
        first, *rest = ".".join(map(str, path)).split(".")
        if first != SECTION:
            continue
        if isinstance(one.holds, ParameterGroup):
            yield from _given(one.holds.declared, path)
        elif rest:
            yield _Given(("parameters", *path), ".".join(rest), None, one.holds)
            if rest == ["strategy"] and isinstance(one.holds, Choice):
                for branch, inside in one.holds.branches.items():
                    for inner in inside:
                        here = ("parameters", *path, branch, *inner.path)
                        yield _Given(here, ".".join(inner.path), branch, inner.holds)
