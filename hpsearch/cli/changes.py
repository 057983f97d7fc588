"""What `resume --set KEY=VALUE` may change of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpsearch._sweep_checks import InvalidKey
from hpsearch._sweep_reader import duration
from hpsearch._sweep_yaml import parse_value
from hpsearch.errors import SweepError
from hpsearch.sweep import Sweep

__all__ = ["change_sweep"]

_Change = Callable[[Sweep, Any], Sweep]


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
        changes = _changes(sweep)
        if not equals or key not in changes:
            raise SweepError(
                f"--set {given}: this study has begun and takes {', '.join(changes)} as KEY=VALUE, and no other key; "
                "run another sweep in a directory of its own"
            )
        try:
            sweep = changes[key](sweep, parse_value(text, f"--set {given}"))
        except InvalidKey as error:
            raise SweepError(f"--set {given}: {error}") from None
    return sweep


def _changes(sweep: Sweep) -> Mapping[str, _Change]:
    """Give what may be changed of this sweep, by key."""
    raisable = () if sweep.early_terminate is None else sweep.early_terminate.raisable
    return _CHANGES | {f"early_terminate.{key}": _setting(key) for key in raisable}


def _setting(name: str) -> _Change:
    def change(sweep: Sweep, value: Any) -> Sweep:
        assert sweep.early_terminate is not None, "the key is one of its settings"
        return replace(sweep, early_terminate=sweep.early_terminate.with_settings({name: value}))

    return change


def _limit(name: str, read: Callable[[Any], Any]) -> _Change:
    return lambda sweep, value: replace(sweep, limits=replace(sweep.limits, **{name: read(value)}))


def _width(name: str) -> _Change:
    return lambda sweep, value: replace(sweep, resources=replace(sweep.resources, **{name: value}))


def _seconds(key: str) -> Callable[[Any], Any]:
    return lambda value: None if value is None else duration(value, ("limits", key))


_CHANGES: dict[str, _Change] = {
    "run_cap": lambda sweep, value: replace(sweep, run_cap=value),
    "limits.max_time": _limit("max_time", _seconds("max_time")),
    "limits.trial_timeout": _limit("trial_timeout", _seconds("trial_timeout")),
    "limits.max_retries": _limit("max_retries", lambda value: value),
    **{f"resources.{key}": _width(key) for key in ("workers_per_trial", "max_workers_per_trial", "elastic")},
}
