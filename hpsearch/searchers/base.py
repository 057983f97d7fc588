"""The interface of searchers, which suggest configurations.

A searcher is pure: it uses no clock, thread or I/O, and its own seed. The same calls return the same answers, so that
a study resumes by replaying its journal.
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
    avoid_failures: bool = True
    """Suggestions avoid configurations that are likely to run out of memory or time, or to report NaN, as trials
    before did; [how](methods.md#failures-teach)."""
    options: Mapping[str, Any] | None = None
    """Options of the [method](methods.md); of one from Optuna, the arguments of its sampler."""


S = TypeVar("S", bound=Settings)


def options_as(settings: type[S], search: Search, method: str) -> S:
    """Return the options of a method as its settings.

    Args:
        settings: Class whose fields are the known options; each has a default.
        search: The section of the sweep.
        method: Name of the method, for messages.

    Raises:
        InvalidKey: An option is unknown or has an invalid value.
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
    """The search problem that a searcher is built for."""

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
    """Shown in tables: `"random"`, `"grid"`, `"points_to_try"`, `"stand_in"`, or the searcher's `kind`."""
    parent: StateAt | None = None
    """The state that the trial is forked from. The trial gets the newest checkpoint up to that state as
    `trial.parent_checkpoint`, and starts at iteration 0."""


@dataclass(frozen=True, slots=True)
class Observation:
    """New reports of a trial, and its state, since its last observation.

    If rungs end by costs, iterations are costs, rounded down; that of a segment's last report is the segment's end.
    """

    trial: Trial
    iteration: int
    """The last iteration that counts."""
    until: int | None
    """Iteration at which the trial's segment ends, such as a rung's. None: when the trainable returns."""
    reports: Sequence[Report]
    """The trial's new reports with all metrics, in the order of iterations. None was observed before, unless the trial
    was reverted or dropped in between."""
    ended: bool
    """The trial reached the end of its segment or failed permanently; False: it is still running."""
    failure: Failure | None = None
    """Why the trial failed permanently."""
    decisions: Sequence[Decision] = ()
    """The scheduler's decisions that follow from this observation, about this trial and others."""


@dataclass(frozen=True, slots=True)
class Past:
    """A trial of another search, known before this search starts."""

    params: Params
    """The params, in the form in which this sweep's space samples them."""
    values: Mapping[int, Score]
    """Iteration to the reported score, in rising order; at least one. Scores may be NaN or infinite."""
    until: int | None
    """How many iterations the trial was trained, as in `Observation.until`; at most `max_iter` of this sweep. None if
    this sweep has no `max_iter`."""


@dataclass(frozen=True, kw_only=True)
class SearcherCapabilities:
    """The capabilities of a searcher."""

    learns: bool = False
    """The suggestions depend on observations. The searcher then runs in its own process, where its module is imported.
    False: a suggestion depends on its number alone, and `observe` is not called."""
    remembers: bool = True
    """If it learns: earlier suggestions affect later ones. A resumed search then requests all earlier suggestions
    again. False: replaying the journal is enough."""
    finite: bool = False
    """The number of suggestions is finite, so that a sweep needs no other bound."""
    completes_points: bool = True
    """Points to try may omit parameters, which are then sampled."""
    explores: bool = False
    """It implements `explore`, which returns params for trials that the scheduler forks."""
    has_options: bool = False
    """It accepts `search.options` and checks them; otherwise options are refused."""
    changes: bool = True
    """If the space of a study changes, a new searcher can take over at any number; see `started` and `observe`. False:
    suggestions follow a plan over the whole space."""
    avoids_failures: bool = False
    """If it learns: with `search.avoid_failures` it avoids configurations that are likely to run out of memory or time.
    `limits.max_failures: auto` then doesn't count such failures."""
    recalls: bool = False
    """If it learns: it can be warm-started with trials of other searches."""
    several_goals: bool = False
    """If it learns: it supports several metrics, and compares trials by `Objective.sort_keys`."""
    outcome_constraints: bool = False
    """If it learns: it supports outcome constraints."""
    forks: bool = False
    """Its suggestions may name parents; `needs` returns the states whose checkpoints are kept for that."""

    def unsupported_key(self, objective: Objective) -> str | None:
        """Return the key of the objective that the searcher doesn't support; None if it supports all of it."""
        if self.learns and objective.several and not self.several_goals:
            return "metric"
        return "outcome_constraints" if self.learns and objective.constraints and not self.outcome_constraints else None


class Searcher(ABC):
    """Base class of searchers, which suggest configurations.

    A searcher defines `suggest`, and `observe` if it learns.
    """

    kind: ClassVar[str]
    """Its `method` in a sweep file."""
    known_as: ClassVar[str | None] = None
    """The `method` that this one is an alias of, such as for W&B's term."""
    over: ClassVar[str | None] = None
    """The default `type` of `early_terminate` if the sweep has no such section; `max_iter` is then a top-level key."""
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build the searcher for a sweep whose settings were checked."""
        return cls(problem)

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that the searcher can search this space with these settings.

        Raises:
            InvalidKey: The searcher can't; the key starts with `parameters` or `search`.
        """

    @classmethod
    def may_fork(cls, settings: Search) -> bool:
        """Return whether suggestions may name parents with these settings, which were checked."""
        return cls.capabilities.forks

    @property
    def draws_first(self) -> int:
        """Number of first trials that are sampled from the space without a call of `suggest`; 0 unless it learns.

        Read once, after `recall`.
        """
        return 0

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Return suggestion `number`, or None when the space is exhausted.

        Numbers rise by 1, starting after the points to try and the `draws_first` trials. For a searcher that doesn't
        learn, a resumed search starts at the first number that isn't in the journal.
        """

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Return the params of trial `number`, which the scheduler forks from `parent`.

        The numbers of `suggest` are counted separately and have no gaps.

        Raises:
            NotImplementedError: The searcher doesn't explore.
        """
        raise NotImplementedError(f"{type(self).__name__} has no params for forked trials")

    @property
    def size(self) -> int | None:
        """Number of all suggestions; None if there is no end."""
        return None

    def needs(self) -> Collection[StateAt]:
        """Return the states that suggestions may still name as parents; their checkpoints are kept.

        If the searcher learns, this is called after each suggestion, and states that it hasn't observed yet are kept as
        well. A state that was left out once may no longer be available.
        """
        return ()

    def recall(self, past: Sequence[Past]) -> None:
        """Learn from trials of other searches; called once before anything else, or never.

        Those trials may have used other data, so their configurations may be suggested again.

        Raises:
            NotImplementedError: The searcher can't be warm-started.
        """
        raise NotImplementedError(f"{type(self).__name__} can't begin with trials of other searches")

    def started(self, trial: Trial) -> None:
        """Add a trial that was created from a suggestion or a point to try; also called in a replay."""

    def observe(self, observation: Observation) -> None:
        """Learn from new reports of a trial; called only if `capabilities.learns`."""

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget a trial's reports after this iteration, and its failure: the trial resumes after the iteration."""

    def dropped(self, trial: Trial) -> None:
        """Forget a trial's reports: its checkpoint is gone, so it starts over (a fork from its parent's checkpoint)."""

    def close(self) -> None:
        """Release resources; nothing is called afterwards."""


def refuse_priors(problem: Problem, by: str) -> None:
    """Refuse priors for a searcher that doesn't sample from the space.

    Raises:
        InvalidKey: A parameter has a prior.
    """
    for parameter in problem.space.parameters:
        if parameter.distribution.prior is not None:
            raise InvalidKey(
                ("parameters", *parameter.path, "prior"),
                f"has no effect on {by}",
                "remove it; points_to_try says what is tried first",
            )


def refuse_constraints(problem: Problem, method: str) -> None:
    """Refuse constraints, which this searcher can't satisfy, and derived values, whose function may raise an error.

    Raises:
        InvalidKey: The space has a constraint or a value derived by a function.
    """
    if problem.space.constraints:
        raise InvalidKey(("constraints",), f"must not be given for {method}", "take random, tpe or evolution")
    if problem.space.calls:
        text = f"must not have a value derived by a function, which may refuse points, for {method}"
        raise InvalidKey(("parameters",), text, "take random, tpe or evolution")


def refuse_conditions(problem: Problem, method: str) -> None:
    """Refuse a space with conditional parameters.

    Raises:
        InvalidKey: The space has conditional parameters.
    """
    space = problem.space
    if space.conditional:
        some = next(name for name in space.some_names() if name not in space.columns([]))
        text = f"must be parameters that every trial has for {method}, but {some} doesn't always apply"
        raise InvalidKey(("parameters",), text, "take tpe, gp or evolution")


def listed(problem: Problem, method: str) -> tuple[Parameter, ...]:
    """Return all parameters that a configuration of the space may contain.

    Raises:
        InvalidKey: Their number has no bound.
    """
    unbounded = problem.space.unbounded
    if unbounded is not None:
        text = f"is required where the method is {method}: a repeated block needs a bound"
        raise InvalidKey(("parameters", *unbounded, "max"), text, "add max: 4, or take random, tpe or evolution")
    return problem.space.parameters
