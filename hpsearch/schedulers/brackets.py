"""Brackets and rungs: the numbers of trials and iterations, in integers, and the state of a bracket.

A bracket starts a number of trials and promotes 1 of `eta` at each rung. The promoted trials run `eta` times as long.
Hyperband runs several brackets, from many trials with a short first rung to few trials with a long one (Li et al.,
"Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185), 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpsearch.schedulers.base import Outcome

Variant = Literal["paper", "table"]

RungLaw = Literal["geometric", "paper"]
"""Where rungs end: multiples of `min_iter`, or fractions of `max_iter` as in the paper."""


@dataclass(frozen=True, slots=True)
class Rung:
    """Number of trials, and the iteration until which they run."""

    until: int
    """The trials run until the end of this iteration, counted from the start of the trial."""
    size: int
    """Number of trials."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Rungs from the shortest to the longest; `until` rises and `size` never does."""

    rungs: tuple[Rung, ...]

    @property
    def trials(self) -> int:
        """Number of trials that start in this bracket."""
        return self.rungs[0].size if self.rungs else 0


def rung_count(min_iter: int, max_iter: int, eta: int) -> int:
    """Return the number of powers of `eta` from `min_iter` to `max_iter`: 6 for 1..243 by 3, 4 for 1..1000 by 10.

    Powers are multiplied, because the quotient of two logarithms can be too small at an exact power: log 243 / log 3 <
    5 in floats.
    """
    count, length = 1, min_iter * eta
    while length <= max_iter:
        count, length = count + 1, length * eta
    return count


def rung_ends(min_iter: int, max_iter: int, eta: int, law: RungLaw = "geometric") -> tuple[int, ...]:
    """Return the iterations at which rungs end, rising to `max_iter`.

    `geometric` multiplies `min_iter` by `eta` while the product is below `max_iter`, and adds `max_iter`: 1, 3, 9, 27,
    50 for 1..50 by 3. `paper` divides `max_iter` and rounds down, as in Algorithm 1: 1, 5, 16, 50. If `max_iter` is
    `min_iter` times a power of `eta`, both are the same.
    """
    count = rung_count(min_iter, max_iter, eta)
    if law == "paper":
        return tuple(max_iter // eta**power for power in range(count - 1, -1, -1))
    counted = (min_iter * eta**power for power in range(count))
    return (*(length for length in counted if length < max_iter), max_iter)


def hyperband_trials(s: int, s_max: int, eta: int) -> int:
    """Return n of Algorithm 1, the trials that start in bracket s: the ceiling of (s_max + 1) eta^s / (s + 1)."""
    started: int = -(-(s_max + 1) * eta**s // (s + 1))
    return started


def hyperband_brackets(
    max_iter: int, min_iter: int = 1, eta: int = 3, variant: Variant = "paper", law: RungLaw = "geometric"
) -> tuple[Bracket, ...]:
    """Return one round of Hyperband's brackets, sorted by number of trials, the most first.

    For `max_iter=81, eta=3` they start with 81, 34, 15, 8 and 5 trials. `variant="table"` computes
    floor((s_max + 1) / (s + 1)) eta^s, which starts 81, 27, 9, 6 and 5.

    Source: Algorithm 1 of the paper, with R = max_iter / min_iter. There are as many brackets as rungs, s_max + 1.
    Bracket s has the last s + 1 rungs.
    """
    ends = rung_ends(min_iter, max_iter, eta, law)
    s_max = len(ends) - 1
    brackets = []
    for s in range(s_max, -1, -1):
        trials = hyperband_trials(s, s_max, eta) if variant == "paper" else (s_max + 1) // (s + 1) * eta**s
        brackets.append(_by_floor(ends[s_max - s :], trials, eta))
    return tuple(brackets)


def successive_halving_bracket(
    max_iter: int, min_iter: int, eta: int, trials: int | None = None, law: RungLaw = "geometric"
) -> Bracket:
    """Return the single bracket of successive halving, over all rungs from `min_iter` to `max_iter`.

    Args:
        max_iter: Iteration at which the last rung ends.
        min_iter: Minimum length of the first rung.
        eta: 1 of `eta` trials is promoted at each rung.
        trials: Number of trials that start. By default, exactly one reaches the last rung. With fewer, rungs that
            would be empty are dropped, and no trial reaches `max_iter`.
        law: Where the rungs end.
    """
    ends = rung_ends(min_iter, max_iter, eta, law)
    if trials is None:
        trials = eta ** (len(ends) - 1)
    return _by_floor(ends, trials, eta)


def cut(bracket: Bracket, trials: int, eta: int) -> Bracket:
    """Return a bracket cut to fewer trials: rung i has `trials // eta**i`; empty rungs are dropped."""
    if trials >= bracket.trials:
        return bracket
    return _by_floor([rung.until for rung in bracket.rungs], trials, eta)


def thin(bracket: Bracket, first: int, size: int) -> Bracket:
    """Return a bracket with at most `size` trials in rung `first` and later rungs; 0 drops these rungs."""
    later = (Rung(rung.until, min(rung.size, size)) for rung in bracket.rungs[first:] if size > 0)
    return Bracket((*bracket.rungs[:first], *later))


def iterations(bracket: Bracket) -> int:
    """Return the number of iterations that a bracket runs; a promoted trial resumes where it stopped."""
    total, before = 0, 0
    for rung in bracket.rungs:
        total += rung.size * (rung.until - before)
        before = rung.until
    return total


def upcoming(
    cycle: Sequence[Bracket], started: int, eta: int, trials: int | None, brackets: int | None
) -> tuple[int, int]:
    """Return (trials, iterations when each promotion resumes) of all brackets after the first `started` ones.

    The cost doesn't grow with the number of rounds.

    Args:
        cycle: The brackets of one round; rounds repeat.
        started: Number of brackets that have started.
        eta: 1 of `eta` trials is promoted at each rung.
        trials: Number of trials that may still start; None: no bound.
        brackets: Number of brackets that may still start; None: no bound. One of the two bounds must be set.
    """
    round_trials = sum(bracket.trials for bracket in cycle)
    # Any len(cycle) consecutive brackets have the trials of one round, so whole rounds are multiplied.
    rounds = []
    if trials is not None:
        rounds.append(trials // round_trials)
    if brackets is not None:
        rounds.append(brackets // len(cycle))
    shortest = min(rounds)
    trials_left = round_trials if trials is None else trials - shortest * round_trials
    brackets_left = len(cycle) if brackets is None else brackets - shortest * len(cycle)
    total_trials = shortest * round_trials
    total_iterations = shortest * sum(iterations(bracket) for bracket in cycle)
    for position in range(started, started + min(brackets_left, len(cycle))):
        bracket = cut(cycle[position % len(cycle)], trials_left, eta)
        trials_left -= bracket.trials
        total_trials += bracket.trials
        total_iterations += iterations(bracket)
    return total_trials, total_iterations


def _by_floor(lengths: Sequence[int], trials: int, eta: int) -> Bracket:
    sizes = [trials // eta**power for power in range(len(lengths))]
    return Bracket(tuple(Rung(until, size) for until, size in zip(lengths, sizes, strict=True) if size > 0))


@dataclass(slots=True, eq=False)
class OpenBracket:
    """A bracket that has started.

    All its trials are in one rung: a rung starts when the previous rung has ended.
    """

    index: int
    """Index of the bracket over all rounds, from 0."""
    plan: Bracket
    position: int = 0
    """Index of the current rung."""
    unfilled: Bracket | None = None
    """If all trials of a rung failed, which empties the next rungs: the plan before that. Otherwise None."""
    undecided: list[Outcome] = field(default_factory=list)
    """Outcomes of the current rung that have no decision yet."""

    @property
    def rung(self) -> Rung:
        """The current rung."""
        return self.plan.rungs[self.position]

    @property
    def in_last_rung(self) -> bool:
        """Whether the current rung is the last."""
        return self.position == len(self.plan.rungs) - 1
