"""A trainable that does nothing, for measuring the overhead of a trial."""

from __future__ import annotations

from hpsearch_trainers.trial import TrialLike


def train(trial: TrialLike) -> None:
    """Report the sum of the numeric parameters as `value` in each iteration, without checkpoints."""
    value = sum(float(entry) for entry in trial.params.values() if isinstance(entry, int | float))
    for _ in trial.iterations():
        trial.report({"value": value})
