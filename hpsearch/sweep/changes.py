"""Changes of a study's sweep by `resume --set KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import NONE, settings_fields
from hpsearch.errors import SweepError
from hpsearch.sweep.document import parse_value
from hpsearch.sweep.parts import SECTIONS
from hpsearch.sweep.reader import observer_names
from hpsearch.sweep.sweep import Sweep

__all__ = ["change_sweep"]


def change_sweep(sweep: Sweep, overrides: Sequence[str]) -> Sweep:
    """Return a study's sweep with changed bounds, limits, targets or observers.

    Args:
        sweep: The sweep of the study.
        overrides: `KEY=VALUE`, the value in YAML.

    Raises:
        SweepError: The key cannot be changed after the start of a study, or the value is invalid.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        changeable = _changeable(sweep)
        if not equals or key not in changeable:
            raise SweepError(
                f"--set {override}: this study has begun and takes {', '.join(changeable)} as KEY=VALUE, and no other "
                "key; run another sweep in a directory of its own"
            )
        try:
            sweep = _changed(sweep, key, parse_value(text, f"--set {override}"))
        except InvalidKey as error:
            raise SweepError(f"--set {override}: {error}") from None
    return sweep


def _changeable(sweep: Sweep) -> list[str]:
    """Return the keys of a sweep that can be changed: its bounds, and how it runs."""
    early = sweep.early_terminate
    keys = ["run_cap", *(f"early_terminate.{key}" for key in (() if early is None else early.raisable))]
    several = len(sweep.objective.goals) > 1
    metrics = [f"metric.{index}" for index in range(len(sweep.objective.goals))] if several else ["metric"]
    for name in ("limits", "resources", *metrics):
        keys += [
            f"{name}.{key}"
            for key, field in settings_fields(SECTIONS[name.partition(".")[0]]).items()
            if field.how and (several or key != "reference")
        ]
    if sweep.strategies.fixed:  # their results depend on the number of workers
        keys.remove("resources.workers_per_trial")
    return [*keys, "observers", "on_end"]


def _changed(sweep: Sweep, key: str, value: Any) -> Sweep:
    path, _, name = key.rpartition(".")
    if not path:
        value = observer_names(value, (name,)) if name == "observers" else None if value == NONE else value
        return replace(sweep, **{name: value})
    section, _, index = path.partition(".")
    value_of_section = getattr(sweep, section)
    settings = value_of_section[int(index)] if index else value_of_section
    try:
        read = settings_fields(type(settings))[name].read(value, (name,))
        changed = replace(settings, **{name: read})
    except InvalidKey as error:
        raise error.under((section, int(index)) if index else (section,)) from None
    if index:
        changed = tuple(changed if known is settings else known for known in value_of_section)
    return replace(sweep, **{section: changed})
