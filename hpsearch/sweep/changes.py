"""What `resume --set KEY=VALUE` may change of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpsearch.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.settings import SettingsField, settings_fields
from hpsearch.sweep.document import parse_value
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.sweep import Sweep

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
    """Give what may be changed of this sweep: its bounds, and what is about how it is run."""
    changes: dict[str, _Change] = {"run_cap": lambda sweep, value: replace(sweep, run_cap=value)}
    early = sweep.early_terminate
    if early is not None:
        fields = settings_fields(type(early))
        changes |= {f"early_terminate.{key}": _setting("early_terminate", key, fields[key]) for key in early.raisable}
    for name, kind in (("limits", Limits), ("resources", Resources)):
        changes |= {
            f"{name}.{key}": _setting(name, key, field) for key, field in settings_fields(kind).items() if field.how
        }
    return changes


def _setting(section: str, key: str, field: SettingsField) -> _Change:
    def change(sweep: Sweep, value: Any) -> Sweep:
        read = field.read(value, (section, key))
        try:
            part = replace(getattr(sweep, section), **{key: read})
        except InvalidKey as error:
            raise error.under((section,)) from None
        return replace(sweep, **{section: part})

    return change
