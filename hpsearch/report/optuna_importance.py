"""How much each parameter matters, by Optuna's fANOVA."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.report.optuna_distributions import optuna_parameter
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow

__all__ = ["importances"]

_TREES = 32
"""Half of Optuna's default, which takes half of the time."""


def importances(sweep: Sweep, rows: Sequence[TrialRow], values: Sequence[float]) -> dict[str, float]:
    """Give the share of the variance that each parameter explains, the greatest first.

    Only parameters that all of these trials have, and that vary, are looked at. Equal trials give equal shares.

    Args:
        sweep: Says what the parameters are.
        rows: Trials.
        values: Of each.
    """
    import warnings

    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    common = set.intersection(*(set(row.params) for row in rows))
    names = [name for name in sweep.parameters.columns(row.params for row in rows) if name in common]
    known = {}
    for name in names:
        parameter, own = sweep.parameters.find(name), [row.params[name] for row in rows]
        if parameter is None or all(value == own[0] for value in own):
            continue
        if (counterpart := optuna_parameter(parameter.distribution, own)) is not None:
            known[name] = counterpart
    if not known or len(set(values)) < 2:
        return {}
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study()
            distributions = {name: one.distribution for name, one in known.items()}
            for row, value in zip(rows, values, strict=True):
                params = {name: one.value(row.params[name]) for name, one in known.items()}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
            evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
            found = get_param_importances(study, evaluator=evaluator, params=list(known))
    finally:
        optuna.logging.set_verbosity(level)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
