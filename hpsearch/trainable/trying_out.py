"""Try out a trainable without a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.trainable import random_state
from hpsearch.trainable.alone import TrialAlone
from hpsearch.trainable.current import set_current_trial
from hpsearch.trainable.running_trial import SegmentEnd
from hpsearch.trainable.trainables import class_of, resolve_trainable


def try_out(
    trainable: str | Callable[..., Any],
    params: Mapping[str, Any] | None = None,
    /,
    *,
    max_iter: int | None = None,
    directory: str | Path | None = None,
    seed: int = 0,
    **named: Any,
) -> list[dict[str, float]]:
    """Run a function, class or `Trainer` with given parameters in this process, without a sweep, and print its reports.

    The global generators of Python, NumPy and torch are seeded, as in a sweep. An exception of the trainable is raised.

    Args:
        trainable: A function or class, or its import path.
        params: The parameters, nested like the sweep's groups.
        max_iter: The last iteration; None: three, or for a function with its own loop until it returns.
        directory: Keeps the last checkpoint. If it has one, the trial resumes from it. None: nothing is kept.
        seed: The trial's seed.
        named: Parameters by name; they override `params`.

    Returns:
        The metrics of each iteration.

    Raises:
        TrainableError: It isn't a trainable, or reports wrongly.
    """
    target = resolve_trainable(trainable)
    trial = TrialAlone({**(params or {}), **named}, max_iter, directory, seed)
    outer = set_current_trial(trial)
    random_state.seed_all(seed)
    try:
        if class_of(target) is not None:
            _step(target, trial)
        else:
            target(trial)
            if trial.at_end is not None:
                trial.at_end(None)
    except SegmentEnd:
        pass
    finally:
        set_current_trial(outer)
        trial.leave_group()
        trial.clean_up()
    if not trial.reports and not trial.start:
        raise TrainableError("a trainable must report at least once, but it returned without: call trial.report(...)")
    return trial.reports


def _step(target: Callable[..., Any], trial: TrialAlone) -> None:
    instance = target(trial)
    try:
        if trial.start:
            instance.load_state_dict(trial.checkpoint)
        for _ in trial.iterations():
            trial.report(instance.step(), getattr(instance, "state_dict", None))
    finally:
        if callable(close := getattr(instance, "close", None)):
            close()
