"""Encode events, and the decisions that followed, as JSON for the journal.

Only plain JSON is written, and nothing is unpickled.

An event is a JSON object, and so are the dataclasses inside it, except those written as lists. Their names in the
journal are defined in the tables below: classes and fields can be renamed, names in the journal can't. The trial's
number isn't in the object, since it has its own column.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any

from hpsearch.decision import Decision, Followed, PlanChange
from hpsearch.events import (
    Added,
    Asked,
    Changed,
    Continued,
    Dropped,
    Ended,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Noted,
    Opened,
    Pruned,
    Retried,
    Reverted,
    Saved,
    Started,
    Steered,
)
from hpsearch.trial import Costs, Failure, Parent, Report, Trial


@dataclass(frozen=True, slots=True)
class _Layout:
    """JSON layout of a dataclass."""

    kind: type
    trial: str
    """The field with the trial's number; empty if there is none."""
    fields: Mapping[str, str]
    """Names in the journal, in the order of writing, to fields: `segment.start` is a field of the field `segment`."""


def _layout(kind: type, trial: str, names: str) -> _Layout:
    """Build a layout.

    Args:
        kind: The class.
        trial: As in `_Layout`.
        names: Names in the journal; `name=field` if the field has another name.
    """
    pairs = (name.partition("=") for name in names.split())
    return _Layout(kind, trial, {name: field or name for name, _, field in pairs})


_EVENTS: Mapping[str, _Layout] = {
    "opened": _layout(Opened, "", "backend workers process command workers_per_trial code"),
    "asked": _layout(Asked, "", "number parent bracket"),
    "started": _layout(
        Started,
        "segment.trial",
        "new reason bracket rung start=segment.start end=segment.end checkpoint=segment.checkpoint "
        "attempt=segment.attempt width=segment.width costs=segment.costs",
    ),
    "saved": _layout(Saved, "trial", "attempt iteration checkpoint reports"),
    "noted": _layout(Noted, "trial", "attempt notes"),
    "finished": _layout(Finished, "trial", "attempt iteration checkpoint reports cut seconds stopped lanes"),
    "failed": _layout(Failed, "trial", "attempt failure retry reports seconds"),
    "lost": _layout(Lost, "trial", "attempt reason counts_against_trial seconds then company"),
    "reverted": _layout(Reverted, "trial", "attempt iteration reason seconds checkpoint"),
    "dropped": _layout(Dropped, "trial", "reason"),
    "retried": _layout(Retried, "trial", ""),
    "continued": _layout(Continued, "trial", "until iteration checkpoint"),
    "pruned": _layout(Pruned, "trial", "reason"),
    "added": _layout(Added, "", "params"),
    "exhausted": _layout(Exhausted, "", ""),
    "extended": _layout(Extended, "", "run_cap settings"),
    "changed": _layout(Changed, "", "parameters from_trial"),
    "steered": _layout(Steered, "", "verb by request details refused"),
    "ended": _layout(Ended, "", "state message"),
}
"""Layouts by the event's kind in the journal. No name may ever change."""

_PARTS: Mapping[type, _Layout] = {
    layout.kind: layout
    for layout in (
        _layout(Trial, "number", "params seed origin parent start configuration repeat"),
        _layout(Parent, "", "number iteration checkpoint params"),
    )
}
"""Dataclasses that are objects inside an event's object."""

_ROWS: Mapping[type, _Layout] = {
    layout.kind: layout
    for layout in (
        _layout(Costs, "", "start end"),
        _layout(Report, "trial", "iteration seconds metrics lanes"),
        _layout(Failure, "", "kind message traceback key"),
    )
}
"""Dataclasses that are written as lists of these fields: reports are most of a journal. An optional field is the last,
and is omitted if it has its default."""

_LACKING: Mapping[type, Mapping[str, Any]] = {
    Opened: {"code": ""},
    Started: {"costs": None},
    Finished: {"stopped": "", "lanes": 1},
    Lost: {"seconds": 0.0, "then": "", "company": ()},
    Trial: {"parent": None, "start": 0, "configuration": None, "repeat": 0},
    Parent: {"params": {}},
    Report: {"lanes": 1},
    Failure: {"key": ""},
}
"""Values of names that a body lacks, as earlier versions omitted them. No value here may ever change."""

_OMITTED: Mapping[type, Sequence[str]] = {Trial: ("configuration", "repeat")}
"""Names that aren't written with their value in `_LACKING`, which is that of most sweeps."""


def _former_suggested(body: dict[str, Any]) -> None:
    body.pop("seen", None)  # the number of results that the searcher had received, which `Asked` records now


_FORMER: Mapping[type, Callable[[dict[str, Any]], None]] = {
    Started: _former_suggested,
    Exhausted: _former_suggested,
}
"""Converts names of earlier versions."""

_Read = Callable[[Any, Any], Any]
"""Converts (the trial's number, the JSON value) to the value."""


def encode(event: Event) -> tuple[str, int | None, str]:
    """Return an event's (kind, trial, JSON body)."""
    kind, trial = _KINDS[type(event)]
    return kind, None if trial is None else trial(event), _dump(_plain(event))


def decode(kind: str, trial: int | None, body: str) -> Event:
    """Read an event back.

    Raises:
        KeyError, TypeError, ValueError: These are not the columns of an event.
    """
    parsed, end = _parse(body)
    if end != len(body):
        raise ValueError(f"expected nothing after the JSON, got {body[end:]!r}")
    event: Event = _READERS[kind](trial, parsed)
    return event


def _plain(obj: Any) -> dict[str, Any] | tuple[Any, ...]:
    """Return a dataclass for the JSON encoder, which calls this for the dataclasses inside it."""
    names, values = _WRITERS[type(obj)]
    if names is None:
        return values(obj)
    body = dict(zip(names, values(obj), strict=True))
    for name in _OMITTED.get(type(obj), ()):
        if body[name] == _LACKING[type(obj)][name]:
            del body[name]
    return body


_parse = json.JSONDecoder().raw_decode  # `json.loads` first skips white space, which takes a fifth of its time

# In ASCII: an error message may contain a lone surrogate from a file name, which SQLite can't store as text.
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain).encode


def _getter(names: Iterable[str], get: Any = attrgetter) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gets these attributes, or items with `itemgetter`. It always returns a tuple."""
    several = tuple(names)
    if len(several) > 1:
        get_all: Callable[[Any], tuple[Any, ...]] = get(*several)
        return get_all
    getters = [get(name) for name in several]
    return lambda obj: tuple([getter(obj) for getter in getters])


def _row_writer(layout: _Layout) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that converts a dataclass to its row."""
    row = _getter(layout.fields.values())
    if layout.kind not in _LACKING:
        return row
    ((last, meant),) = _LACKING[layout.kind].items()
    assert last == [*layout.fields][-1]
    return lambda part: values[:-1] if (values := row(part))[-1] == meant else values


def _reader(layout: _Layout) -> _Read:
    """Return a function that reads a dataclass from its JSON object."""
    keys = set(layout.fields)
    lacking = _LACKING.get(layout.kind, {})
    former = _FORMER.get(layout.kind)
    build = _builder(layout)

    def read(trial: int | None, body: Any) -> Any:
        if type(body) is not dict or body.keys() != keys:
            body = {**lacking, **body}
            if former is not None:
                former(body)
            if body.keys() != keys:
                raise KeyError(*sorted(body.keys() ^ keys))
        return build(trial, body)

    return read


def _builder(layout: _Layout) -> _Read:
    """Return a function that creates a dataclass from a JSON object with all names."""
    hints = typing.get_type_hints(layout.kind)
    field_names = [field.name for field in fields(layout.kind)]
    names = {field: name for name, field in layout.fields.items()}
    numbered = layout.trial in field_names
    assert not numbered or field_names[0] == layout.trial
    inlined = [field for field in field_names if any(path.startswith(f"{field}.") for path in names)]
    build_inlined = [(field, _builder(_inner(layout, field, hints[field]))) for field in inlined]
    # Inlined dataclasses are read under their field's name, which isn't in the journal.
    in_order = _getter([field if field in inlined else names[field] for field in field_names[numbered:]], itemgetter)
    readers = [(name, _value_reader(hints[field])) for field, name in names.items() if field in hints]
    parts = [(name, reader) for name, reader in readers if reader is not None]
    make = layout.kind

    def build(trial: int | None, values: dict[str, Any]) -> Any:
        for name, reader in parts:
            values[name] = reader(trial, values[name])
        for field, build_one in build_inlined:
            values[field] = build_one(trial, values)
        return make(trial, *in_order(values)) if numbered else make(*in_order(values))

    return build


def _inner(layout: _Layout, field: str, kind: type) -> _Layout:
    """Return the layout of a field whose own fields are merged into the object's."""
    inside = {name: path.split(".")[1] for name, path in layout.fields.items() if path.startswith(f"{field}.")}
    return _Layout(kind, layout.trial.removeprefix(f"{field}."), inside)


def _row_reader(layout: _Layout) -> _Read:
    """Return a function that reads a dataclass from its row."""
    row, lacking = [*layout.fields], tuple(_LACKING.get(layout.kind, {}).values())
    field_names = [field.name for field in fields(layout.kind)]
    numbered = layout.trial in field_names
    order = [*layout.fields.values()]
    in_order = itemgetter(*[order.index(field) for field in field_names if field != layout.trial])
    make = layout.kind

    def read(trial: int | None, values: Any) -> Any:
        if len(values) == len(row) - len(lacking):
            values = *values, *lacking
        if len(values) != len(row):
            raise ValueError(f"expected {row}, got {values}")
        return make(trial, *in_order(values)) if numbered else make(*in_order(values))

    return read


def _value_reader(hint: Any) -> _Read | None:
    """Return the decoder of a type; None if JSON needs no conversion."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _row_reader(_ROWS[hint]) if hint in _ROWS else _reader(_PARTS[hint])
    inner = [read for argument in typing.get_args(hint) if (read := _value_reader(argument)) is not None]
    if not inner:
        return (lambda trial, values: tuple(values)) if typing.get_origin(hint) is tuple else None
    (read,) = inner
    if typing.get_origin(hint) is tuple:
        return lambda trial, values: tuple([read(trial, value) for value in values])
    assert typing.get_origin(hint) is types.UnionType, hint
    return lambda trial, value: None if value is None else read(trial, value)


_KINDS: Mapping[type, tuple[str, Callable[[Any], int] | None]] = {
    layout.kind: (kind, attrgetter(layout.trial) if layout.trial else None) for kind, layout in _EVENTS.items()
}
_WRITERS: Mapping[type, tuple[Sequence[str] | None, Callable[[Any], tuple[Any, ...]]]] = {
    **{
        layout.kind: (tuple(layout.fields), _getter(layout.fields.values()))
        for layout in (*_EVENTS.values(), *_PARTS.values())
    },
    **{kind: (None, _row_writer(layout)) for kind, layout in _ROWS.items()},
}
"""(names in a dataclass's JSON object, or None for a row; function that gets their values)."""
_READERS = {kind: _reader(layout) for kind, layout in _EVENTS.items()}


_dump_followed = json.JSONEncoder(separators=(",", ":")).encode
_NOTHING = Followed()


def encode_followed(followed: Followed) -> str:
    """Return the decisions that followed an event as text; empty if there are none, as for most events."""
    values: dict[str, object] = {}
    if followed.decisions:
        values["decisions"] = [(decision.trial, decision.action, decision.reason) for decision in followed.decisions]
    if followed.plan is not None:
        values["plan"] = (followed.plan.total, list(followed.plan.brackets.items()))
    return _dump_followed(values) if values else ""


def decode_followed(text: str) -> Followed:
    """Read the text that `encode_followed` returned.

    Raises:
        KeyError, TypeError, ValueError: The text has another form.
    """
    if not text:
        return _NOTHING
    values = json.loads(text)
    decisions = tuple([Decision(*row) for row in values.get("decisions", ())])
    if "plan" not in values:
        return Followed(decisions)
    total, brackets = values["plan"]
    plans = {bracket: tuple([(until, size) for until, size in rungs]) for bracket, rungs in brackets}
    return Followed(decisions, PlanChange(None if total is None else (total[0], total[1]), plans))
