"""Searchers that fit a model to all that is known, anew for each suggestion; through Optuna."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hpsearch.searchers.base import SearcherCapabilities, Suggestion
from hpsearch.searchers.learning import REDRAWS
from hpsearch.searchers.optuna_searcher import OptunaSearcher, quiet
from hpsearch.seeds import suggestion_seed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

__all__ = ["BOHB", "GP", "TPE", "Bayes"]


class TPE(OptunaSearcher):
    """Tree-structured Parzen estimator: densities of the good and of the other points, and the best of their ratios.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4; over all parameters at once
    as in Falkner et al., "BOHB", ICML 2018. Trials that are under way count among the others (a constant liar). Where
    parameters don't always apply, those that apply together have densities of their own.

    With several goals the good points are the first fronts, and of the last of them those that add most to the
    hypervolume: Ozaki et al., "Multiobjective Tree-Structured Parzen Estimator", JAIR 73, 2022.
    """

    kind: ClassVar[str] = "tpe"
    capabilities: ClassVar[SearcherCapabilities] = replace(
        OptunaSearcher.capabilities, several_goals=True, outcome_constraints=True
    )
    whole: ClassVar[bool] = False

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        own = {"multivariate": True, "group": True, "constant_liar": True, "n_startup_trials": 0}
        own["warn_independent_sampling"] = False
        with quiet():
            return TPESampler(seed=seed, **{**own, **self._options})


class Bayes(TPE):
    """W&B's word; the model is `tpe`."""

    kind: ClassVar[str] = "bayes"
    known_as: ClassVar[str | None] = TPE.kind

    @property
    def origin(self) -> str:
        """That of the method that it is."""
        return TPE.kind


class BOHB(TPE):
    """Successive halving whose trials are suggested by TPE, but for every third, which is random.

    Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018. Over ASHA where the
    sweep names no `early_terminate`.
    """

    kind: ClassVar[str] = "bohb"
    over: ClassVar[str | None] = "asha"

    random_share: ClassVar[float] = 1 / 3

    def suggest(self, number: int) -> Suggestion | None:
        """Give a point that wasn't tried yet; None where none is left."""
        if suggestion_seed(self.problem.seed, number, REDRAWS) < self.random_share * 2**32:
            drawn = self._tried.draw(self.problem.seed, number)
            return None if drawn is None else Suggestion(drawn, "random")
        return super().suggest(number)


class GP(OptunaSearcher):
    """A Gaussian process with a Matern-5/2 kernel, and the point of the largest expected improvement by it.

    Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", Journal of Global Optimization 1998.
    With several goals one process for each, and the largest expected improvement of the hypervolume: Daulton et al.,
    "Differentiable Expected Hypervolume Improvement", NeurIPS 2020. Constraints on outcomes have processes of their
    own.
    """

    kind: ClassVar[str] = "gp"
    capabilities: ClassVar[SearcherCapabilities] = replace(
        OptunaSearcher.capabilities, several_goals=True, outcome_constraints=True
    )

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=seed, **{"n_startup_trials": 0, **self._options})
