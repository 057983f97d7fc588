"""Events to and from JSON, for the journal. Nothing but plain JSON is ever written, and nothing is unpickled.

The layout follows from the dataclasses: an event is an object of its fields, and so is a dataclass inside it. The
trial's number isn't among them: it is the same throughout, and has a column of its own. The tables below say what is
otherwise.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any

from hpsearch.events import Event, Exhausted, Extended, Failed, Finished, Lost, Opened, Started
from hpsearch.trial import Failure, Parent, Report, Segment, Trial

__all__ = ["decode", "encode"]

_NUMBER: Mapping[type, str] = {Trial: "number"}
"""The field that is the trial's number, where it isn't `trial`."""

_ROWS: Mapping[type, Sequence[str]] = {
    Report: ("iteration", "seconds", "metrics", "lanes"),
    Failure: ("kind", "message", "traceback"),
}
"""Written as a list of these fields: reports are most of a journal. One that can be lacking is the last, and is left
out where it says no more than that."""

_INLINED: Mapping[type, str] = {Started: "segment"}
"""A field whose own fields stand among the event's."""

_LACKING: Mapping[type, Mapping[str, Any]] = {
    Opened: {"workers_per_trial": None, "code": ""},
    Started: {"new": None, "reason": "", "bracket": None, "rung": None},
    Finished: {"stopped": "", "lanes": 1},
    Failed: {"seconds": 0.0},
    Lost: {"seconds": 0.0, "then": "", "company": ()},
    Extended: {"settings": {}},
    Segment: {"checkpoint": None, "width": 1},
    Trial: {"parent": None, "start": 0},
    Parent: {"params": {}},
    Report: {"lanes": 1},
}
"""What it means that a body lacks a field: former versions left these out. No value here may ever change."""


def _former_suggested(body: dict[str, Any]) -> None:
    body.pop("seen", None)  # how much its searcher knew, which `Asked` tells now


def _former_lost(body: dict[str, Any]) -> None:
    if "innocent" in body:
        body["counts_against_trial"] = not body.pop("innocent")


def _former_extended(body: dict[str, Any]) -> None:
    if "brackets" in body and (brackets := body.pop("brackets")) is not None:
        body["settings"] = {"brackets": brackets}


_FORMER: Mapping[type, Callable[[dict[str, Any]], None]] = {
    Started: _former_suggested,
    Exhausted: _former_suggested,
    Lost: _former_lost,
    Extended: _former_extended,
}
"""Puts what former versions wrote under another name into today's place."""

_Read = Callable[[Any, Any], Any]
"""(The trial's number, what JSON gives) to the value."""


def encode(event: Event) -> tuple[str, int | None, str]:
    """Give an event's (kind, trial, JSON body)."""
    kind = _KINDS[type(event)]
    trial = event.segment.trial if isinstance(event, Started) else getattr(event, "trial", None)
    return kind, trial, _dump(_plain(event))


def decode(kind: str, trial: int | None, body: str) -> Event:
    """Read an event back.

    Raises:
        KeyError, TypeError, ValueError: These are not the columns of an event.
    """
    parsed, end = _parse(body)
    if end != len(body):
        raise ValueError(f"expected nothing after the JSON, got {body[end:]!r}")
    event: Event = _EVENTS[kind](trial, parsed)
    return event


def _plain(part: Any) -> dict[str, Any] | tuple[Any, ...]:
    """Give a dataclass as JSON has it, but for the dataclasses inside it: the encoder passes these on to here."""
    names, values = _LAYOUTS[type(part)]
    return values(part) if names is None else dict(zip(names, values(part), strict=True))


_parse = json.JSONDecoder().raw_decode  # `json.loads` looks for space around it first, which takes a fifth of its time

# In ASCII: the name of a file may put half a surrogate pair into an error's message, and SQLite takes no such text.
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain).encode


def _number(kind: type) -> str:
    return _NUMBER.get(kind, "trial")


def _names(kind: type) -> tuple[str, ...]:
    """Give the fields of a dataclass that its JSON holds."""
    return tuple(field.name for field in fields(kind) if field.name != _number(kind))


def _inlined(kind: type) -> type | None:
    """Give the class of the field whose own fields stand among the event's."""
    return typing.get_type_hints(kind)[_INLINED[kind]] if kind in _INLINED else None


def _layout(kind: type) -> tuple[Sequence[str] | None, Callable[[Any], tuple[Any, ...]]]:
    """Give the keys of a dataclass's object, None for a row, and what gets their values."""
    if kind in _ROWS:
        return None, _row(kind)
    places = {name: name for name in _names(kind)}
    if (inner := _inlined(kind)) is not None:
        field = places.pop(_INLINED[kind])
        places |= {name: f"{field}.{name}" for name in _names(inner)}
    if len(places) < 2:  # of one name `attrgetter` gives no tuple
        return tuple(places), lambda part: tuple([getattr(part, name) for name in places])
    return tuple(places), attrgetter(*places.values())


def _row(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Make what gets the row of a dataclass."""
    row: Callable[[Any], tuple[Any, ...]] = attrgetter(*_ROWS[kind])
    if kind not in _LACKING:
        return row
    ((last, meant),) = _LACKING[kind].items()
    assert last == _ROWS[kind][-1]
    return lambda part: values[:-1] if (values := row(part))[-1] == meant else values


def _reader(kind: type) -> _Read:
    """Make what reads a dataclass."""
    if kind in _ROWS:
        return _row_reader(kind)
    inner = _inlined(kind)
    keys = set(_LAYOUTS[kind][0] or ())
    lacking = {**_LACKING.get(kind, {}), **(_LACKING.get(inner, {}) if inner is not None else {})}
    build = _builder(kind)

    def read(trial: int | None, body: Any) -> Any:
        if type(body) is not dict or body.keys() != keys:
            body = {**lacking, **body}
            if kind in _FORMER:
                _FORMER[kind](body)
            if body.keys() != keys:
                raise KeyError(*sorted(body.keys() ^ keys))
        return build(trial, body)

    return read


def _builder(kind: type) -> _Read:
    """Make what makes a dataclass of an object with all its keys."""
    hints, inner, names = typing.get_type_hints(kind), _inlined(kind), _names(kind)
    readers = {name: _value_reader(hints[name]) for name in names if hints[name] is not inner}
    parts = [(name, reader) for name, reader in readers.items() if reader is not None]
    build_inlined = None if inner is None else _builder(inner)
    in_order = itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]
    numbered = _number(kind) in hints

    def build(trial: int | None, values: dict[str, Any]) -> Any:
        for name, reader in parts:
            values[name] = reader(trial, values[name])
        if build_inlined is not None:
            values[_INLINED[kind]] = build_inlined(trial, values)
        return kind(trial, *in_order(values)) if numbered else kind(*in_order(values))

    return build


def _row_reader(kind: type) -> _Read:
    row, names = _ROWS[kind], _names(kind)
    lacking = tuple(_LACKING.get(kind, {}).values())
    numbered = _number(kind) in typing.get_type_hints(kind)
    in_order = itemgetter(*[row.index(name) for name in names])

    def read(trial: int | None, values: Any) -> Any:
        if len(values) == len(row) - len(lacking):
            values = *values, *lacking
        if len(values) != len(row):
            raise ValueError(f"expected {row}, got {values}")
        return kind(trial, *in_order(values)) if numbered else kind(*in_order(values))

    return read


def _value_reader(hint: Any) -> _Read | None:
    """Make what reads a field of this type; None where JSON gives it as it is."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _reader(hint)
    inner = [read for argument in typing.get_args(hint) if (read := _value_reader(argument)) is not None]
    if not inner:
        return (lambda trial, values: tuple(values)) if typing.get_origin(hint) is tuple else None
    (read,) = inner
    if typing.get_origin(hint) is tuple:
        return lambda trial, values: tuple([read(trial, value) for value in values])
    assert typing.get_origin(hint) is types.UnionType, hint
    return lambda trial, value: None if value is None else read(trial, value)


_KINDS = {kind: kind.__name__.lower() for kind in typing.get_args(Event)}
_LAYOUTS = {kind: _layout(kind) for kind in (*_KINDS, Trial, Parent, *_ROWS)}
_EVENTS = {name: _reader(kind) for kind, name in _KINDS.items()}
