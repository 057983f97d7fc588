"""Quasi-random search: points that fill the space more evenly than independent draws."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.searchers.base import (
    Observation,
    Problem,
    Searcher,
    Suggestion,
    listed,
    refuse_constraints,
    refuse_priors,
)
from hpsearch.seeds import DRAW_BITS

__all__ = ["QMC"]

_MOST_DIMENSIONS = 21_201
"""Of SciPy's direction numbers."""

_BITS = 30
"""Of one coordinate; there are two to their power points."""

_POINTS = 1 << _BITS


class QMC(Searcher):
    """The points of a scrambled Sobol sequence, each coordinate by the distribution of its parameter.

    Parameters that don't apply at a point have a coordinate that plays no part.

    Sobol 1967; Owen, "Scrambling Sobol and Niederreiter-Xing Points", Journal of Complexity 1998, through SciPy. Point
    n depends on (seed, n) and on which parameters the space has. The first 2**k points are the best balanced.
    """

    kind: ClassVar[str] = "qmc"

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there is such a sequence."""
        refuse_constraints(problem, "qmc, whose points are all or none")
        if len(listed(problem, "qmc")) > _MOST_DIMENSIONS:
            raise InvalidKey(("parameters",), f"must be at most {_MOST_DIMENSIONS} for qmc")
        refuse_priors(problem, "qmc, which fills the whole space")

    def suggest(self, number: int) -> Suggestion | None:
        """Give point `number` of the sequence, or None behind its end."""
        from scipy.stats.qmc import Sobol

        if number >= self.size:
            return None
        moving = [p for p in self.problem.space.parameters if p.distribution.searched]
        shares: list[float] = []
        if moving:
            sequence = Sobol(len(moving), scramble=True, bits=_BITS, rng=self.problem.seed)
            if number:  # SciPy can't go on by nothing
                sequence.fast_forward(number)
            shares = sequence.random(1)[0].tolist()
        bits = {p.name: _bits(share) for p, share in zip(moving, shares, strict=True)}
        params = self.problem.space.build(lambda parameter: parameter.distribution.draw(bits.get(parameter.name, 0)))
        return Suggestion(params, self.kind)

    def observe(self, observation: Observation) -> None:
        """Ignore it: the suggestions depend on their numbers alone."""

    @property
    def size(self) -> int:
        """Number of points of the sequence."""
        return _POINTS


def _bits(share: float) -> int:
    """Give the random bits of a draw that a share in [0, 1) stands for."""
    return min(int(share * (1 << DRAW_BITS)), (1 << DRAW_BITS) - 1)
