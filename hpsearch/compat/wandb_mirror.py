"""W&B's own library in a script of a sweep: its runs get the trial's params, and what they log is reported.

The script is not edited. hpsearch puts the folder `hook` into its PYTHONPATH, which calls `mirror` when the script, or
a library such as Lightning or transformers, imports `wandb`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from hpsearch.compat.wandb_run import Config, Run
from hpsearch.errors import TrainableError
from hpsearch.trainable.current import trial_of_script
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd

_CLAIM = ".wandb-run"
"""File in the attempt's directory, created by the process of the script whose runs are reported."""

_mirrors: WeakKeyDictionary[Any, Run] = WeakKeyDictionary()
"""W&B's runs that are mirrored, to our run that reports."""

_replaced: WeakSet[Any] = WeakSet()
"""W&B's runs that another run has replaced."""

_begun: list[Run] = []
"""All of our runs in this process, in order. The newest reports."""


def mirror(wandb: Any) -> None:
    """Make W&B's library mirror its runs to the trial that this script runs.

    Args:
        wandb: The imported library. A folder of W&B's runs, which Python may take for it, is left alone.
    """
    if not (hasattr(wandb, "init") and hasattr(wandb, "Run")):
        return
    os.register_at_fork(after_in_child=_forget)
    wandb.init = _mirrored_init(wandb.init)
    for method in (_log, _finish):
        name = method.__name__[1:]
        setattr(wandb.Run, name, functools.partialmethod(method, getattr(wandb.Run, name)))


def _mirrored_init(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def init_run(*args: Any, **kwargs: Any) -> Any:
        run = init(*args, **kwargs)
        if run in _mirrors:  # it was begun before, and W&B returned it again
            return run
        for earlier in list(_mirrors):  # a `with` block has ended it, or it is replaced
            _mirrors.pop(earlier).finish()
            _replaced.add(earlier)
        trial, was_begun = trial_of_script()
        # As W&B does it in its own sweeps: what the script sets later for these names isn't taken.
        run.config.update_locked(dict(trial.params), user="sweep", _allow_val_change=True)
        if _reports(trial, was_begun):
            ours = _mirrors[run] = Run(trial, Config(), {})
            _begun.append(ours)
            trial.at_end = functools.partial(_end, run, ours)
        return run

    return init_run


def _reports(trial: RunningTrial, was_begun: bool) -> bool:
    """Return whether runs of this process are reported: the first one of the script that begins a run is.

    Args:
        trial: The trial.
        was_begun: Whether this process had the trial before: then the script reports itself, or runs are reported.
    """
    if was_begun:
        return bool(_begun)
    try:
        (trial.directory / _CLAIM).touch(exist_ok=False)
    except FileExistsError:  # another process of the script reports
        return False
    return True


def _forget() -> None:
    """Report nothing from a forked child."""
    if _begun:
        trial_of_script()[0].at_end = None
    _mirrors.clear()
    _begun.clear()


def _log(
    run: Any,
    log: Callable[..., None],
    data: Mapping[str, Any],
    step: int | None = None,
    commit: bool | None = None,
    **more: Any,
) -> None:
    log(run, data, step=step, commit=commit, **more)
    if run in _replaced:
        raise TrainableError(
            "a script must log to one run of W&B's after the other, as reports count on from run to run, but logs to "
            "one that another wandb.init has replaced: end it first, or set HPSEARCH_WANDB=off, and no run is reported"
        )
    if (ours := _mirrors.get(run)) is not None:
        _check_one_way()
        try:
            ours.log(data, step, commit)
        except SegmentEnd:
            run.finish(exit_code=0)
            raise


def _finish(run: Any, finish: Callable[..., None], exit_code: int | None = None, **more: Any) -> None:
    ours = _mirrors.pop(run, None)
    logged = {} if ours is None else dict(run.summary)
    finish(run, exit_code, **more)
    if ours is not None:
        _check_one_way()
        if ours.step == 0 and not ours.is_whole:
            ours.summary.update(logged)  # a script may set the metric there alone
        ours.finish(exit_code)


def _end(run: Any, ours: Run, error: BaseException | None) -> None:
    """End a run that the script didn't finish."""
    if run in _mirrors:
        run.finish(exit_code=int(error is not None and not isinstance(error, SegmentEnd)))
    ours.at_end(error)


def _check_one_way() -> None:
    """Check that nothing but W&B's run has reported.

    Raises:
        TrainableError: Both did, so that reports would count twice.
    """
    trial, _ = trial_of_script()
    if trial.iteration != trial.start + sum(run.step for run in _begun):
        raise TrainableError(
            "a script must report in one way, but this one logs to a run of W&B's, which hpsearch reports, and also "
            "reports itself: remove one, or set HPSEARCH_WANDB=off, and W&B's run is not reported"
        )
