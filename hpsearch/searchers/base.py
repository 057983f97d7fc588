"""The searcher's seam: what to try next.

A searcher is pure: no clock, no thread, no I/O, its own seed. The same calls give the same answers: a resumed search
makes the calls again that the journal tells of, and goes on as before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.decision import Decision
from hpsearch.objective import Objective
from hpsearch.searchers.settings import Search
from hpsearch.space import Parameter, Space
from hpsearch.trial import Failure, Params, Report, Score, StateAt, Trial

__all__ = [
    "Observation",
    "Past",
    "Problem",
    "Searcher",
    "SearcherCapabilities",
    "Suggestion",
    "listed",
    "refuse_conditions",
    "refuse_constraints",
    "refuse_priors",
]


@dataclass(frozen=True)
class Problem:
    """What a searcher is built for."""

    space: Space
    objective: Objective
    """Says which reports are better."""
    seed: int
    """0 <= seed < 2**32."""
    settings: Search = field(default_factory=Search)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A point of the space to try."""

    params: Params
    origin: str
    """`"random"`, `"grid"`, `"points_to_try"`, `"stand_in"`, or what another searcher calls it."""
    parent: StateAt | None = None
    """What it is forked from: it gets the newest checkpoint that there was then, as `trial.parent_checkpoint`, and
    starts at iteration 0 all the same."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a trial gave since it was observed last."""

    trial: Trial
    iteration: int
    """The last one that counts."""
    until: int | None
    """Where its segment ends or ended: the iterations of a rung. None: where the trainable returns."""
    reports: Sequence[Report]
    """Those that count from now on, with all their metrics; iterations rise, and none was observed before, unless the
    trial was taken back or dropped in between."""
    ended: bool
    """It reached the end of its segment, or failed for good; else it goes on."""
    failure: Failure | None = None
    """Why it failed for good."""
    decisions: Sequence[Decision] = ()
    """What the scheduler decided on it, on this trial and on others."""


@dataclass(frozen=True, slots=True)
class Past:
    """A trial of another search, known before this one begins. It is no trial of this one, and was tried elsewhere."""

    params: Params
    """As this sweep's space would have drawn them."""
    values: Mapping[int, Score]
    """The metric by iteration, which rise; at least one. NaN and infinities are what was reported. Of several goals all
    of them."""
    until: int | None
    """How long it was trained, as `Observation.until`: in iterations, no more than a trial gets here; None where no
    trial here has a length."""


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
    """If it learns: several metrics may decide; it compares what it observes by `Objective.places`."""
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
    """The `method` that it is, where its own is another program's word for it."""
    over: ClassVar[str | None] = None
    """The `type` of `early_terminate` that it runs over where the sweep names none; `max_iter` is then a key at the
    top."""
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @classmethod
    def over_settings(cls, max_iter: int) -> dict[str, Any]:
        """Give the settings that `over` has there, beside `max_iter`; its own defaults where none are given."""
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
        """Say whether it names parents under these settings, which were checked."""
        return cls.capabilities.forks

    @property
    def draws_first(self) -> int:
        """How many of the first suggestions are draws from the space, for which it isn't asked; 0 unless it learns.

        Asked once, after `recall`.
        """
        return 0

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Give suggestion `number`, or None when the space is exhausted.

        Called for numbers that rise by 1, from `draws_first` or from behind the points to try. Of one that doesn't
        learn, on resume, from the first number that the journal doesn't hold.
        """

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Give the params of trial `number`, which the scheduler forks from another one.

        Its numbers aren't among those of `suggest`, which go on without gaps.

        Raises:
            NotImplementedError: It doesn't explore.
        """
        raise NotImplementedError(f"{type(self).__name__} has no params for forked trials")

    @property
    def size(self) -> int | None:
        """Number of suggestions that there are; None where they have no end."""
        return None

    def needs(self) -> Collection[StateAt]:
        """Give the states that it may still name as parents: their checkpoints are kept.

        Of one that learns it is asked after each answer, and what it wasn't told of yet is kept as well. A state that
        was left out once may be gone.
        """
        return ()

    def recall(self, past: Sequence[Past]) -> None:
        """Learn from trials of other searches; called once, before anything else, or never.

        They may have been of other data: what was tried there may be suggested here.

        Raises:
            NotImplementedError: It doesn't recall.
        """
        raise NotImplementedError(f"{type(self).__name__} can't begin with trials of other searches")

    def started(self, trial: Trial) -> None:
        """A trial was created, from this searcher's suggestion or from a point to try; also in a replay."""

    @abstractmethod
    def observe(self, observation: Observation) -> None:
        """Learn from what a trial reported; not called where the capabilities don't say `learns`."""

    def reverted(self, trial: Trial, iteration: int) -> None:
        """What a trial reported after this iteration counts no more, nor that it failed; it goes on from there."""

    def dropped(self, trial: Trial) -> None:
        """A trial's checkpoint is gone: it starts anew, a fork from its parent's, and reports again what it did."""

    def close(self) -> None:
        """Let go of what it holds; nothing is asked any more."""


def refuse_priors(problem: Problem, by: str) -> None:
    """Refuse priors for a searcher that doesn't draw from the space.

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


def refuse_constraints(problem: Problem, who: str) -> None:
    """Refuse constraints for a searcher whose points may not keep them, and functions that may refuse a point.

    Raises:
        InvalidKey: There is one.
    """
    if problem.space.constraints:
        raise InvalidKey(("constraints",), f"must not be given for {who}", "take random, tpe or evolution")
    if problem.space.calls:
        text = f"must not have a value derived by a function, which may refuse points, for {who}"
        raise InvalidKey(("parameters",), text, "take random, tpe or evolution")


def refuse_conditions(problem: Problem, who: str) -> None:
    """Refuse a space some of whose parameters don't always apply.

    Raises:
        InvalidKey: It is one.
    """
    space = problem.space
    if space.conditional:
        some = next(name for name in space.some_names() if name not in space.columns([]))
        text = f"must be parameters that every trial has for {who}, but {some} doesn't always apply"
        raise InvalidKey(("parameters",), text, "take tpe, gp or evolution")


def listed(problem: Problem, who: str) -> tuple[Parameter, ...]:
    """Give all parameters that a point of the space may have.

    Raises:
        InvalidKey: They have no end.
    """
    unbounded = problem.space.unbounded
    if unbounded is not None:
        text = f"is required where the method is {who}: a repeated block needs a bound"
        raise InvalidKey(("parameters", *unbounded, "max"), text, "add max: 4, or take random, tpe or evolution")
    return problem.space.parameters
