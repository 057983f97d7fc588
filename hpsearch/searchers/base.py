"""The interface of searchers: what to try next.

A searcher is pure: no clock, no thread, no I/O, its own seed. The same calls return the same answers, so that a study
resumes by replaying its journal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from hpsearch.config.checks import InvalidKey, nearest, under
from hpsearch.config.settings import AtLeast, Count, Settings, settings_fields
from hpsearch.decision import Decision
from hpsearch.objective import Objective
from hpsearch.space import Parameter, Space
from hpsearch.trial import Failure, Params, Report, Score, StateAt, Trial


@dataclass(frozen=True)
class Search(Settings):
    """How suggestions are requested from a searcher that learns."""

    ahead: bool = True
    """The next suggestion is computed before it is needed. If none is ready when a worker is free, the worker runs a
    random configuration (origin `stand_in`). `false`: the worker waits for its suggestion."""
    lag: Count | None = None
    """Suggestion n waits for, and uses, the results of the trials up to n - `lag`, and no others. The table is then the
    same on any number of workers; at most `lag` of them have new trials."""
    startup: Annotated[int, AtLeast(0)] | None = None
    """Random trials before the model is used, including `points_to_try`; none: the method's default."""
    options: Mapping[str, Any] | None = None
    """Options of the [method](methods.md); of one from Optuna, the arguments of its sampler."""


S = TypeVar("S", bound=Settings)


def options_as(settings: type[S], search: Search, method: str) -> S:
    """Return the options of a method as its settings.

    Args:
        settings: Its fields are the known options; each has a default.
        search: The section of the sweep.
        method: The method that takes the options, for messages.

    Raises:
        InvalidKey: There is an unknown option, or one has an invalid value.
    """
    fields, options = settings_fields(settings), search.options or {}
    for name in options:
        if name not in fields:
            problem = f"isn't an option of {method}, which takes {', '.join(fields)}"
            raise InvalidKey(("search", "options", name), problem, nearest(name, fields))
    with under(("search", "options")):
        return settings(**options)


@dataclass(frozen=True)
class Problem:
    """What a searcher is built for."""

    space: Space
    objective: Objective
    """Orders scores."""
    seed: int
    """0 <= seed < 2**32."""
    settings: Search = field(default_factory=Search)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A configuration to try."""

    params: Params
    origin: str
    """A word for the tables: `"random"`, `"grid"`, `"points_to_try"`, `"stand_in"`, or the searcher's `kind`."""
    parent: StateAt | None = None
    """The state that it is forked from: it gets the newest checkpoint of that time as `trial.parent_checkpoint`, and
    starts at iteration 0."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What happened to a trial since its last observation."""

    trial: Trial
    iteration: int
    """The last iteration that counts."""
    until: int | None
    """Where its segment ends: the iterations of a rung. None: where the trainable returns."""
    reports: Sequence[Report]
    """Its new reports, with all metrics; iterations rise, and none was observed before, unless the trial was reverted
    or dropped in between."""
    ended: bool
    """It reached the end of its segment, or failed for good; otherwise it is still running."""
    failure: Failure | None = None
    """Why it failed for good."""
    decisions: Sequence[Decision] = ()
    """What the scheduler decided because of it, on this trial and on others."""


@dataclass(frozen=True, slots=True)
class Past:
    """A trial of another search, known before this one begins."""

    params: Params
    """As this sweep's space would sample them."""
    values: Mapping[int, Score]
    """The score by iteration, rising; at least one, as reported, including NaN and infinities."""
    until: int | None
    """How long it was trained, in iterations, as `Observation.until`: at most as long as a trial of this sweep; None if
    these have no length."""


@dataclass(frozen=True, kw_only=True)
class SearcherCapabilities:
    """What a sweep may expect of a searcher."""

    learns: bool = False
    """Its suggestions depend on what it observed. Those of one that doesn't learn depend on their numbers alone, and it
    observes nothing. One that learns runs in a process of its own, where its module is imported."""
    remembers: bool = True
    """If it learns: its suggestions change what it suggests later. A resumed search asks it again for all that it
    suggested; for one that doesn't remember, the journal is enough."""
    finite: bool = False
    """It runs out of suggestions on its own, so that a sweep needs no other bound."""
    completes_points: bool = True
    """Points to try may leave parameters out, which are sampled."""
    explores: bool = False
    """It has params for trials that the scheduler forks."""
    has_options: bool = False
    """It takes `search.options` and checks them; otherwise they are refused."""
    recalls: bool = False
    """If it learns: it can begin with trials of other searches."""
    several_goals: bool = False
    """If it learns: several metrics may decide; it compares what it observes by `Objective.sort_keys`."""
    outcome_constraints: bool = False
    """If it learns: reported metrics may be constrained."""
    forks: bool = False
    """It names parents, and by `needs` the checkpoints that are kept for that."""

    def unsupported_key(self, objective: Objective) -> str | None:
        """Return the key of a sweep that the searcher can't serve, None where it serves all of the objective."""
        if self.learns and objective.several and not self.several_goals:
            return "metric"
        return "outcome_constraints" if self.learns and objective.constraints and not self.outcome_constraints else None


class Searcher(ABC):
    """Suggests what to try.

    A searcher defines `suggest` and `observe`.
    """

    kind: ClassVar[str]
    """Its `method` in a sweep file."""
    known_as: ClassVar[str | None] = None
    """The `method` that this is another name for, such as W&B's term."""
    over: ClassVar[str | None] = None
    """The `type` of `early_terminate` that it runs over where the sweep names none; `max_iter` is then a key at the
    top."""
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @classmethod
    def over_settings(cls, max_iter: int) -> dict[str, Any]:
        """Return the settings of `over` besides `max_iter` that differ from its defaults."""
        return {}

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build it for a sweep, whose settings were checked."""
        return cls(problem)

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that it can search this space, and that its settings can be kept.

        Raises:
            InvalidKey: It can't; the key begins with `parameters` or `search`.
        """

    @classmethod
    def may_fork(cls, settings: Search) -> bool:
        """Return whether it names parents under these settings, which were checked."""
        return cls.capabilities.forks

    @property
    def draws_first(self) -> int:
        """How many of the first trials are sampled from the space without a call of `suggest`; 0 unless it learns.

        Read once, after `recall`.
        """
        return 0

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Return suggestion `number`, or None when the space is exhausted.

        Numbers rise by 1, starting after the first `draws_first` trials and the points to try. A resumed search that
        doesn't learn starts at the first number that isn't in the journal.
        """

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Return the params of trial `number`, which the scheduler forks from another one.

        These numbers aren't counted by `suggest`, whose numbers have no gaps.

        Raises:
            NotImplementedError: It doesn't explore.
        """
        raise NotImplementedError(f"{type(self).__name__} has no params for forked trials")

    @property
    def size(self) -> int | None:
        """Number of suggestions that there are; None where they have no end."""
        return None

    def needs(self) -> Collection[StateAt]:
        """Return the states that it may still name as parents, whose checkpoints are kept.

        If it learns, this is called after each suggestion, and states that it hasn't observed yet are kept as well. A
        state that was left out once may be gone.
        """
        return ()

    def recall(self, past: Sequence[Past]) -> None:
        """Learn from trials of other searches; called once before anything else, or never.

        They may have used other data, so their configurations may be suggested again.

        Raises:
            NotImplementedError: It doesn't recall.
        """
        raise NotImplementedError(f"{type(self).__name__} can't begin with trials of other searches")

    def started(self, trial: Trial) -> None:
        """Learn that a trial was created, from a suggestion or from a point to try; also called in a replay."""

    @abstractmethod
    def observe(self, observation: Observation) -> None:
        """Learn from a trial; not called unless the capabilities say `learns`."""

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget what a trial reported after this iteration, and its failure: it runs again from there."""

    def dropped(self, trial: Trial) -> None:
        """Forget a trial's reports: its checkpoint is gone, so it starts again, a fork from its parent's checkpoint."""

    def close(self) -> None:
        """Release resources; nothing is called afterwards."""


def refuse_priors(problem: Problem, by: str) -> None:
    """Refuse priors for a searcher that doesn't sample from the space.

    Raises:
        InvalidKey: A parameter has one.
    """
    for parameter in problem.space.parameters:
        if parameter.distribution.prior is not None:
            raise InvalidKey(
                ("parameters", *parameter.path, "prior"),
                f"has no effect on {by}",
                "remove it; points_to_try says what is tried first",
            )


def refuse_constraints(problem: Problem, method: str) -> None:
    """Refuse constraints that a searcher can't keep, and functions that may refuse a configuration.

    Raises:
        InvalidKey: There is one.
    """
    if problem.space.constraints:
        raise InvalidKey(("constraints",), f"must not be given for {method}", "take random, tpe or evolution")
    if problem.space.calls:
        text = f"must not have a value derived by a function, which may refuse points, for {method}"
        raise InvalidKey(("parameters",), text, "take random, tpe or evolution")


def refuse_conditions(problem: Problem, method: str) -> None:
    """Refuse a space with conditional parameters.

    Raises:
        InvalidKey: It has some.
    """
    space = problem.space
    if space.conditional:
        some = next(name for name in space.some_names() if name not in space.columns([]))
        text = f"must be parameters that every trial has for {method}, but {some} doesn't always apply"
        raise InvalidKey(("parameters",), text, "take tpe, gp or evolution")


def listed(problem: Problem, method: str) -> tuple[Parameter, ...]:
    """Return all parameters that a configuration of the space may have.

    Raises:
        InvalidKey: There is no bound on them.
    """
    unbounded = problem.space.unbounded
    if unbounded is not None:
        text = f"is required where the method is {method}: a repeated block needs a bound"
        raise InvalidKey(("parameters", *unbounded, "max"), text, "add max: 4, or take random, tpe or evolution")
    return problem.space.parameters
