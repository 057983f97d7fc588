"""What `resume --set KEY=VALUE` may change of a study."""

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
    """Give a study's sweep with more to do, other limits, another target or others who watch.

    Args:
        sweep: As the study holds it.
        overrides: `KEY=VALUE`, the value in YAML.

    Raises:
        SweepError: The key can't be changed once a study has begun, or the value isn't right.
    """
    for given in overrides:
        key, equals, text = given.partition("=")
        changeable = _changeable(sweep)
        if not equals or key not in changeable:
            raise SweepError(
                f"--set {given}: this study has begun and takes {', '.join(changeable)} as KEY=VALUE, and no other "
                "key; run another sweep in a directory of its own"
            )
        try:
            sweep = _changed(sweep, key, parse_value(text, f"--set {given}"))
        except InvalidKey as error:
            raise SweepError(f"--set {given}: {error}") from None
    return sweep


def _changeable(sweep: Sweep) -> list[str]:
    """Give the keys of what may be changed of this sweep: its bounds, and what is about how it is run."""
    early = sweep.early_terminate
    keys = ["run_cap", *(f"early_terminate.{key}" for key in (() if early is None else early.raisable))]
    several = len(sweep.objective.goals) > 1
    metrics = [f"metric.{place}" for place in range(len(sweep.objective.goals))] if several else ["metric"]
    for name in ("limits", "resources", *metrics):
        keys += [
            f"{name}.{key}"
            for key, field in settings_fields(SECTIONS[name.partition(".")[0]]).items()
            if field.how and (several or key != "reference")
        ]
    if sweep.strategies.fixed:  # on another number of workers their trials are others
        keys.remove("resources.workers_per_trial")
    return [*keys, "observers", "on_end"]


def _changed(sweep: Sweep, key: str, value: Any) -> Sweep:
    path, _, name = key.rpartition(".")
    if not path:
        value = observer_names(value, (name,)) if name == "observers" else None if value == NONE else value
        return replace(sweep, **{name: value})
    section, _, place = path.partition(".")
    settings = getattr(sweep, section)
    one = settings[int(place)] if place else settings
    try:
        read = settings_fields(type(one))[name].read(value, (name,))
        changed = replace(one, **{name: read})
    except InvalidKey as error:
        raise error.under((section, int(place)) if place else (section,)) from None
    if place:
        changed = tuple(changed if known is one else known for known in settings)
    return replace(sweep, **{section: changed})
