"""A section of a sweep as a frozen dataclass: from its fields it is checked, read from a file, compared and described.

A field is an int, a float, a bool, a str or a `Literal` of words, a number or such words, or one of these or None;
`Annotated` adds its bound, and whether it is about how a sweep is run rather than about what.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hpsearch.checks import InvalidKey, KeyPath, boolean, integer, number, one_of, shown, text

__all__ = ["HOW", "AtLeast", "Count", "Seconds", "Settings", "SettingsField", "settings_fields"]


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number's lower bound."""

    bound: float


@dataclass(frozen=True, slots=True)
class _Duration:
    """Seconds, more than 0; in a file also as text such as 90m."""


@dataclass(frozen=True, slots=True)
class _How:
    """About how a sweep is run: a study that has begun may be resumed with another value."""


HOW = _How()

Count = Annotated[int, AtLeast(1)]
Seconds = Annotated[float, _Duration()]

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNIT_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)


@dataclass(frozen=True)
class Settings:
    """Base of the sections."""

    def __post_init__(self) -> None:
        for name, known in settings_fields(type(self)).items():
            value = getattr(self, name)
            if value is not None or not known.optional:
                object.__setattr__(self, name, known.check(value, (name,)))
        self.check()

    def check(self) -> None:
        """Check what must hold between fields.

        Raises:
            InvalidKey: It doesn't.
        """


@dataclass(frozen=True, slots=True)
class SettingsField:
    """One key of a section."""

    name: str
    check: Callable[[object, KeyPath], Any]
    """Takes a value as Python gives it."""
    read: Callable[[object, KeyPath], Any]
    """Takes a value as a file gives it."""
    schema: Mapping[str, Any]
    """As JSON Schema describes it."""
    optional: bool
    """It may be None."""
    default: Any = MISSING
    how: bool = False

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING


def settings_fields(settings: type[Settings]) -> Mapping[str, SettingsField]:
    """Give the keys that a section takes, in order.

    Raises:
        TypeError: A field is of a type that no sweep file could give.
    """
    hints = get_type_hints(settings, include_extras=True)
    return {known.name: _field(known.name, hints[known.name], known.default) for known in fields(settings)}


@dataclass
class _Hint:
    """A field's type, taken apart."""

    type: Any
    marks: list[Any] = field(default_factory=list)
    optional: bool = False
    words: tuple[str, ...] = ()
    """What may stand in place of a number."""


def _taken_apart(hint: Any) -> _Hint:
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        found = _taken_apart(inner)
        found.marks += marks
        return found
    if get_origin(hint) in (Union, types.UnionType):
        one, *others = [_taken_apart(kind) for kind in get_args(hint) if kind is not type(None)]
        one.optional = type(None) in get_args(hint)
        for other in others:  # words beside a number
            one.words += get_args(other.type)
        return one
    return _Hint(hint)


def _field(name: str, hint: Any, default: Any) -> SettingsField:
    found = _taken_apart(hint)
    if get_origin(found.type) is Literal:
        words = get_args(found.type)
        check: Callable[[object, KeyPath], Any] = functools.partial(_word, words)
        schema: dict[str, Any] = {"enum": list(words)}
    elif found.type in _PLAIN:
        check, kind = _PLAIN[found.type]
        schema = {"type": kind}
    else:
        raise TypeError(f"a setting must be an int, float, bool, str or Literal, or None; {name} is {hint}")
    read = check
    for mark in found.marks:
        if isinstance(mark, AtLeast):
            check = read = functools.partial(_at_least, mark.bound, check)
            schema["minimum"] = mark.bound
        elif isinstance(mark, _Duration):
            check, read = functools.partial(_positive, number), functools.partial(_positive, _duration)
            schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
    if found.words:
        check, read = (functools.partial(_word_or, found.words, kind) for kind in (check, read))
        schema = {"anyOf": [schema, {"enum": list(found.words)}]}
    if found.optional:
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    return SettingsField(name, check, read, schema, found.optional, default, HOW in found.marks)


_PLAIN: Mapping[Any, tuple[Callable[[object, KeyPath], Any], str]] = {
    int: (integer, "integer"),
    float: (number, "number"),
    bool: (boolean, "boolean"),
    str: (text, "string"),
}


def _word(words: tuple[str, ...], value: object, key: KeyPath) -> str:
    return one_of(value, words, key)


def _word_or(words: tuple[str, ...], check: Callable[[object, KeyPath], Any], value: object, key: KeyPath) -> Any:
    if isinstance(value, str):
        if value in words:
            return value
        raise InvalidKey(key, f"must be a number, {' or '.join(words)}, got {shown(value)}")
    return check(value, key)


def _at_least(bound: float, check: Callable[[object, KeyPath], Any], value: object, key: KeyPath) -> Any:
    out = check(value, key)
    if out < bound:
        raise InvalidKey(key, f"must be at least {bound}, got {out}")
    return out


def _positive(read: Callable[[object, KeyPath], float], value: object, key: KeyPath) -> float:
    seconds = read(value, key)
    if seconds <= 0:
        raise InvalidKey(key, f"must be more than 0 seconds, got {shown(value)}")
    return seconds


def _duration(value: object, key: KeyPath) -> float:
    """Take a time in seconds: a number, or text such as 90m, 1h30m or 45s."""
    if not isinstance(value, str):
        return number(value, key)
    match = _DURATION.fullmatch(value.strip())
    if match is None or not value.strip() or len(value) > 30:
        raise InvalidKey(key, f"must be seconds or a time such as 90m, 1h30m or 45s, got {shown(value)}")
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS, strict=True) if part)
