"""How the fields of a dataclass of settings are read from a sweep file: by their types."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hpsearch._sweep_checks import boolean, integer, number, text
from hpsearch._sweep_reader import Kind, choice

__all__ = ["SettingsField", "settings_fields"]

_PLAIN: Mapping[Any, Kind[Any]] = {int: integer, float: number, bool: boolean, str: text}


@dataclass(frozen=True, slots=True)
class SettingsField:
    """One key of a section."""

    read: Kind[Any]
    required: bool


def settings_fields(settings: type) -> dict[str, SettingsField]:
    """Give the keys that a dataclass takes, in order.

    Raises:
        TypeError: A field is of a type that no sweep file could give.
    """
    hints = get_type_hints(settings)
    found = {}
    for field in fields(settings):
        required = field.default is MISSING and field.default_factory is MISSING
        found[field.name] = SettingsField(_reader(hints[field.name], f"{settings.__name__}.{field.name}"), required)
    return found


def _reader(hint: Any, where: str) -> Kind[Any]:
    if get_origin(hint) in (Union, types.UnionType):  # null is as good as leaving it out
        (hint,) = [kind for kind in get_args(hint) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return choice(get_args(hint))
    if hint not in _PLAIN:
        raise TypeError(f"{where} must be an int, float, bool, str or Literal, or one of these or None, got {hint}")
    return _PLAIN[hint]
