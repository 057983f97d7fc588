"""Quasi-random search: points that fill the space more evenly than independent samples."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.searchers.base import (
    Problem,
    Searcher,
    SearcherCapabilities,
    Suggestion,
    listed,
    refuse_constraints,
    refuse_priors,
)

_MOST_DIMENSIONS = 21_201
"""Maximum number of dimensions of SciPy's Sobol sequence."""

_BITS = 30
"""Bits of a coordinate; the sequence has 2**_BITS points."""

_POINTS = 1 << _BITS


class QMC(Searcher):
    """Suggests the points of a scrambled Sobol sequence; each coordinate is a quantile of a parameter's distribution.

    The coordinates of inactive parameters have no effect.

    Sobol 1967; Owen, "Scrambling Sobol and Niederreiter-Xing Points", Journal of Complexity 1998, through SciPy. Point
    n depends on (seed, n) and on the parameters of the space. The first 2**k points are the best balanced.
    """

    kind: ClassVar[str] = "qmc"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(changes=False)

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that the space has no constraints or priors, and not too many dimensions."""
        refuse_constraints(problem, "qmc, whose points are all or none")
        if len(listed(problem, "qmc")) > _MOST_DIMENSIONS:
            raise InvalidKey(("parameters",), f"must be at most {_MOST_DIMENSIONS} for qmc")
        refuse_priors(problem, "qmc, which fills the whole space")

    def suggest(self, number: int) -> Suggestion | None:
        """Return point `number` of the sequence, or None after the last."""
        from scipy.stats.qmc import Sobol

        if number >= self.size:
            return None
        moving = [p for p in self.problem.space.parameters if p.distribution.searched]
        shares: list[float] = []
        if moving:
            sequence = Sobol(len(moving), scramble=True, bits=_BITS, rng=self.problem.seed)
            if number:  # SciPy can't skip 0 points
                sequence.fast_forward(number)
            shares = sequence.random(1)[0].tolist()
        position = {p.name: fraction for p, fraction in zip(moving, shares, strict=True)}
        params = self.problem.space.build(lambda p: p.distribution.quantile(position.get(p.name, 0.0)))
        return Suggestion(params, self.kind)

    @property
    def size(self) -> int:
        """Number of points of the sequence."""
        return _POINTS
