"""What `resume --set KEY=VALUE` may change of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpsearch._sweep_checks import InvalidKey
from hpsearch._sweep_reader import duration
from hpsearch._sweep_yaml import parse_value
from hpsearch.errors import SweepError
from hpsearch.sweep import Hyperband, Sweep

__all__ = ["change_sweep"]


def change_sweep(sweep: Sweep, overrides: Sequence[str]) -> Sweep:
    """Give a study's sweep with more to do, or other limits.

    Args:
        sweep: As the study holds it.
        overrides: `KEY=VALUE`, the value in YAML.

    Raises:
        SweepError: The key can't be changed once a study has begun, or the value isn't right.
    """
    for given in overrides:
        key, equals, text = given.partition("=")
        if not equals or key not in _CHANGES:
            raise SweepError(
                f"--set {given}: a study that has begun takes {', '.join(_CHANGES)} as KEY=VALUE, and no other key; "
                "run another sweep in a directory of its own"
            )
        try:
            sweep = _CHANGES[key](sweep, parse_value(text, f"--set {given}"))
        except InvalidKey as error:
            raise SweepError(f"--set {given}: {error}") from None
    return sweep


def _brackets(sweep: Sweep, value: Any) -> Sweep:
    if not isinstance(sweep.early_terminate, Hyperband):
        raise SweepError("early_terminate.brackets belongs to early_terminate.type: hyperband; set run_cap instead")
    return replace(sweep, early_terminate=replace(sweep.early_terminate, brackets=value))


def _limit(name: str, read: Callable[[Any], Any]) -> Callable[[Sweep, Any], Sweep]:
    return lambda sweep, value: replace(sweep, limits=replace(sweep.limits, **{name: read(value)}))


def _resource(name: str) -> Callable[[Sweep, Any], Sweep]:
    return lambda sweep, value: replace(sweep, resources=replace(sweep.resources, **{name: value}))


def _seconds(key: str) -> Callable[[Any], Any]:
    return lambda value: None if value is None else duration(value, ("limits", key))


_HOW = ("workers_per_trial", "max_workers_per_trial", "elastic", "fresh_process")
"""Resources that change how a study is run, and not what."""

_CHANGES: Mapping[str, Callable[[Sweep, Any], Sweep]] = {
    "run_cap": lambda sweep, value: replace(sweep, run_cap=value),
    "early_terminate.brackets": _brackets,
    "limits.max_time": _limit("max_time", _seconds("max_time")),
    "limits.trial_timeout": _limit("trial_timeout", _seconds("trial_timeout")),
    "limits.max_retries": _limit("max_retries", lambda value: value),
    **{f"resources.{key}": _resource(key) for key in _HOW},
}
