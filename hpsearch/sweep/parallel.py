"""How several workers train one trial: the section `parallel` of a sweep, and parameters named `parallel.*`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hpsearch.config.checks import InvalidKey, KeyPath, nearest
from hpsearch.config.settings import AtLeast, Count, Settings, settings_fields
from hpsearch.space import Choice, Derived, Distribution, Space
from hpsearch.space.distribution import Numeric
from hpsearch.space.parameter import ParameterGroup, Structure
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from hpsearch.schedulers.early_terminate import EarlyTerminate

SECTION = "parallel"

_PREFIX = f"{SECTION}."

STRATEGY = f"{SECTION}.strategy"
"""Flat name of the parameter that selects the strategy of a trial."""

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
"""The keys of each strategy. Trainers read them; they are checked here before anything runs."""

ASYNCHRONOUS = frozenset({"downpour", "hogwild", "locked"})
"""Strategies whose ranks do not wait for each other, so that results are not reproducible."""

ON_THE_HOST = frozenset({"hogwild", "locked", "tensor"})
"""Strategies that a Trainer has only on the CPU: shared memory, and split layers, which no GPU has run yet."""


@dataclass(frozen=True)
class Parallel(Settings):
    """How several workers train one trial. A Trainer implements it; other trainables read `trial.parallel`."""

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
class _ParallelParameter:
    """A parameter `parallel.*` of a sweep."""

    path: KeyPath
    """Path in the sweep."""
    key: str
    strategy: str | None
    """The strategy in whose branch the parameter is declared; None: it applies to all strategies."""
    holds: Distribution | Structure

    @property
    def values(self) -> Sequence[Value]:
        """All values, or the smallest and the largest; empty for a derived value."""
        if isinstance(self.holds, Choice):
            return list(self.holds.branches)
        assert isinstance(self.holds, Distribution)
        every = self.holds.every_value()
        if every is not None:
            return every
        return self.holds.ends if isinstance(self.holds, Numeric) else ()


@dataclass(frozen=True)
class Strategies:
    """The strategies of a sweep's trials: the section, overridden by parameters `parallel.*`.

    Without the section and without `parallel.strategy`, a group of that name is an ordinary group.
    """

    section: Parallel | None
    parameters: Space

    @cached_property
    def _own_parameters(self) -> Sequence[_ParallelParameter]:
        parameters = list(_parallel_parameters(self.parameters))
        return parameters if self.section is not None or any(param.key == "strategy" for param in parameters) else ()

    @property
    def named(self) -> bool:
        """Whether the sweep has the section or such parameters."""
        return self.section is not None or bool(self._own_parameters)

    @cached_property
    def possible(self) -> Sequence[str]:
        """The strategies that trials may have, in the order of the docs."""
        possible = {str(value) for param in self._own_parameters if param.key == "strategy" for value in param.values}
        if STRATEGY not in self.parameters.columns(()):
            possible.add((self.section or Parallel()).strategy)
        return [strategy for strategy in KEYS if strategy in possible]

    @cached_property
    def asynchronous(self) -> Sequence[str]:
        """The possible strategies whose results are not reproducible."""
        return [strategy for strategy in self.possible if strategy in ASYNCHRONOUS]

    @cached_property
    def on_the_host(self) -> Sequence[str]:
        """The possible strategies that a Trainer can't use on a GPU."""
        return [strategy for strategy in self.possible if strategy in ON_THE_HOST]

    @cached_property
    def fixed(self) -> Sequence[str]:
        """The possible strategies whose results depend on the number of workers, which is therefore fixed."""
        return [strategy for strategy in self.possible if strategy != "allreduce"]

    def of(self, params: Params) -> dict[str, Any]:
        """Return the strategy of a trial and its options; empty if the sweep sets none.

        Args:
            params: Flat names to values.
        """
        if not self.named:
            return {}
        options: dict[str, Any] = asdict(self.section or Parallel())
        settings = {name[len(_PREFIX) :]: value for name, value in params.items() if name.startswith(_PREFIX)}
        options |= {key: value for key, value in settings.items() if "." not in key}
        branch = f"strategy.{options['strategy']}."
        options |= {key.removeprefix(branch): value for key, value in settings.items() if key.startswith(branch)}
        return {key: value for key, value in options.items() if value is not None}

    def is_asynchronous(self, params: Params) -> bool:
        """Return whether the results of a trial are not reproducible."""
        return bool(self.asynchronous) and self.of(params).get("strategy") in ASYNCHRONOUS

    def check(self, width: int, widest: int, early: EarlyTerminate | None) -> None:
        """Check that every possible strategy is compatible with the rest of the sweep.

        Args:
            width: Minimum number of workers of a trial.
            widest: Maximum number of workers of a trial.
            early: The scheduler that terminates trials early, if there is one.

        Raises:
            InvalidKey: A strategy is not compatible, or a key has no meaning.
        """
        for parameter in sorted(self._own_parameters, key=lambda param: param.key != "strategy"):  # the strategy first
            self._check_parameter(parameter)
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
                f"must be left out where {STRATEGY} may be average_once, got {early.kind}: workers are averaged once, "
                "at the end, which a trial that ends early doesn't reach",
                "remove it, or take another strategy, such as local_sgd",
            )

    def _check_parameter(self, parameter: _ParallelParameter) -> None:
        path, key, holds = parameter.path, parameter.key, parameter.holds
        fields = settings_fields(Parallel)
        if key not in fields or (parameter.strategy is not None and key == "strategy"):
            raise InvalidKey(path, f"isn't a known key of {SECTION}", nearest(key, fields))
        if isinstance(holds, Structure) and not (key == "strategy" and isinstance(holds, Choice)):
            raise InvalidKey(path, f"must be a parameter with one value, got a {holds.kind}")
        if key == "strategy" and isinstance(holds, Derived):
            raise InvalidKey(path, "must say which strategies there may be, got a derived value", "give values")
        for value in parameter.values:
            try:
                fields[key].check(value, path)
            except InvalidKey as error:
                advice = "a parameter of your own must be called otherwise" if key == "strategy" else ""
                raise InvalidKey(error.key, error.problem, error.advice or advice) from None
        if key != "strategy":
            self._check_meaning(path, key, self.possible if parameter.strategy is None else [parameter.strategy])

    def _check_meaning(self, path: KeyPath, key: str, strategies: Sequence[str]) -> None:
        """Check that at least one of the strategies uses a key."""
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
                f"must not be given where {STRATEGY} may be {' or '.join(self.fixed)}: only allreduce can resume with "
                f"another number of workers; got {widest}",
                "remove it",
            )

    def _most_servers(self, strategy: str) -> int:
        """Return the maximum number of servers of a trial with a strategy."""
        if "servers" not in KEYS[strategy]:
            return 0
        servers = [
            param for param in self._own_parameters if param.key == "servers" and param.strategy in (None, strategy)
        ]
        searched = [value for param in servers for value in param.values if isinstance(value, int)]
        section = None if self.section is None else self.section.servers
        return max([*searched, section or 1])


def _parallel_parameters(space: Space) -> Iterator[_ParallelParameter]:
    """Yield the parameters `parallel.*` at the top level, in groups, and in branches of the strategy."""
    has_branches = isinstance(space.structure(STRATEGY), Choice)
    for path, item in space.everything():
        first, *tail = ".".join(path).split(".")
        if first != SECTION or not tail or isinstance(item.holds, ParameterGroup):
            continue
        branch = tail[1] if has_branches and tail[0] == "strategy" and len(tail) > 1 else None
        key = ".".join(tail if branch is None else tail[2:])
        yield _ParallelParameter(("parameters", *path), key, branch, item.holds)
