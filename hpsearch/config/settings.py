"""Sections of a sweep as frozen dataclasses, whose fields define validation, parsing, comparison and JSON schema.

A field is an int, float, bool, str, `tuple[str, ...]`, a mapping, a `Literal` of words, a number or a `Literal`, or one
of these or None. `Annotated` adds a bound (`AtLeast`), or marks a field that may change in a resumed study (`HOW`).
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache, partial
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hpsearch.config.checks import InvalidKey, KeyPath, at_least, boolean, integer, number, one_of, plain, shown, text


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Lower bound of a number."""

    bound: float


HOW = object()
"""Marks a setting of how a sweep runs, not of what it searches: a study can be resumed with another value."""

_DURATION_MARK = object()
"""Marks seconds, more than 0; in a file also a text such as 90m."""

NONE = "none"
"""Means the same as null: `--set limits.patience=none`."""

_Check = Callable[[object, KeyPath], Any]

Count = Annotated[int, AtLeast(1)]
Seconds = Annotated[float, _DURATION_MARK]

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNIT_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)


@dataclass(frozen=True)
class Settings:
    """Base class of the sections."""

    def __post_init__(self) -> None:
        for name, field in settings_fields(type(self)).items():
            object.__setattr__(self, name, field.check(getattr(self, name), (name,)))
        self.check()

    def check(self) -> None:
        """Check the fields against each other.

        Raises:
            InvalidKey: A field contradicts another one.
        """


@dataclass(frozen=True, slots=True)
class SettingsField:
    """A key of a section."""

    check: _Check
    """Validates a Python value."""
    read: _Check
    """Validates a value of a sweep file."""
    schema: Mapping[str, Any]
    """JSON schema of the values."""
    default: Any
    """MISSING if the key is required."""
    how: bool = False
    none_is_word: bool = False
    """Whether the word none is one of its values. Null means the same."""

    @property
    def required(self) -> bool:
        """Whether the key is required."""
        return self.default is MISSING


def settings_fields(settings: type[Settings]) -> Mapping[str, SettingsField]:
    """Return the keys of a section, in order.

    Raises:
        TypeError: The type of a field is not supported.
    """
    return _fields(cast(Any, settings))  # mypy does not regard classes as hashable


@cache  # called for each section that is built
def _fields(settings: Any) -> Mapping[str, SettingsField]:
    hints = get_type_hints(settings, include_extras=True)
    return types.MappingProxyType({field.name: _field(field, hints[field.name]) for field in fields(settings)})


def _field(setting: Field[Any], hint: Any) -> SettingsField:
    """Return the field of a type hint. Nested hints are built from the inside out."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        field = _field(setting, inside[0])
        for mark in inside[1:]:
            field = _marked(field, mark)
        return field
    if get_origin(hint) in (Union, types.UnionType):
        first, *alternatives = (kind for kind in inside if kind is not type(None))
        field = _field(setting, first)
        for words in map(get_args, alternatives):
            schema = {"anyOf": [field.schema, {"enum": [*words, None] if NONE in words else list(words)}]}
            field = replace(_around(field, partial(_word_or, words), schema), none_is_word=NONE in words)
        if type(None) in inside:
            kinds = field.schema.get("anyOf", [field.schema])
            # For a text or a `Literal` of words, "none" may be a value of its own.
            none = {"type": "null"} if first is str or get_origin(first) is Literal else {"enum": [None, NONE]}
            wrap = _unless_null if "type" in none else _unless_none
            field = _around(field, wrap, {"anyOf": [*kinds, none]})
        return field
    if get_origin(hint) is Literal:
        word = partial(one_of, inside)
        return SettingsField(word, word, {"enum": list(inside)}, setting.default)
    if hint not in _PLAIN:
        raise TypeError(
            "a setting must be an int, float, bool, str, tuple[str, ...], mapping or Literal, or None; "
            f"{setting.name} is {hint}"
        )
    check, kind = _PLAIN[hint]
    return SettingsField(check, check, {"type": kind}, setting.default)


def _marked(field: SettingsField, mark: object) -> SettingsField:
    if isinstance(mark, AtLeast):
        return _around(field, partial(at_least, mark.bound), {**field.schema, "minimum": mark.bound})
    if mark is _DURATION_MARK:
        schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
        return replace(field, check=partial(_positive, number), read=partial(_positive, read_duration), schema=schema)
    return replace(field, how=True) if mark is HOW else field


def _around(field: SettingsField, wrap: Callable[..., Any], schema: Mapping[str, Any]) -> SettingsField:
    """Return the field with its check wrapped by another one."""
    return replace(field, check=partial(wrap, field.check), read=partial(wrap, field.read), schema=schema)


def _mapping(value: object, key: KeyPath) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidKey(key, f"must be a mapping of names to values, got {shown(value)}")
    return {name: plain(item, (*key, name)) for name, item in value.items()}


def _texts(value: object, key: KeyPath) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidKey(key, f"must be a list, got {shown(value)}")
    return tuple(text(item, (*key, index)) for index, item in enumerate(value))


_PLAIN: Mapping[Any, tuple[_Check, str]] = {
    int: (integer, "integer"),
    float: (number, "number"),
    bool: (boolean, "boolean"),
    str: (text, "string"),
    tuple[str, ...]: (_texts, "array"),
    Mapping[str, Any]: (_mapping, "object"),
}


def _unless_null(check: _Check, value: object, key: KeyPath) -> Any:
    return None if value is None else check(value, key)


def _unless_none(check: _Check, value: object, key: KeyPath) -> Any:
    return None if value is None or value == NONE else check(value, key)


def _word_or(choices: Sequence[str], check: _Check, value: object, key: KeyPath) -> Any:
    if value is None and NONE in choices:
        return NONE
    if isinstance(value, str):
        if value in choices:
            return value
        raise InvalidKey(key, f"must be a number, {' or '.join(choices)}, got {shown(value)}")
    return check(value, key)


def _positive(read: _Check, value: object, key: KeyPath) -> float:
    seconds: float = read(value, key)
    if seconds <= 0:
        raise InvalidKey(key, f"must be more than 0 seconds, got {shown(value)}")
    return seconds


def read_duration(value: object, key: KeyPath) -> float:
    """Return a time in seconds, from a number or a text such as 90m, 1h30m or 45s."""
    if not isinstance(value, str):
        return number(value, key)
    match = _DURATION.fullmatch(value.strip())
    if match is None or not value.strip() or len(value) > 30:
        raise InvalidKey(key, f"must be seconds or a time such as 90m, 1h30m or 45s, got {shown(value)}")
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS, strict=True) if part)
