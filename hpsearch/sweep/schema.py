"""The JSON schema of sweep files, for editors, and the tables of keys in the documentation.

`python -m hpsearch.sweep.schema docs` writes both to the folder `docs`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from hpsearch.config.settings import NONE, Settings, SettingsField, settings_fields
from hpsearch.objective import Metric
from hpsearch.objective.repeats import Repeats
from hpsearch.schedulers import KNOWN
from hpsearch.searchers import KNOWN as SEARCHERS
from hpsearch.sweep.auto import AUTO
from hpsearch.sweep.distributions import PARAMETER_FORMS
from hpsearch.sweep.parameters import STRUCTURE_FORMS
from hpsearch.sweep.parts import SECTIONS
from hpsearch.sweep.wandb import IGNORED, METRIC_IGNORED

_DOTTED = ("resources", "limits", "checkpoints")
"""Sections in a common table of the documentation, whose keys need a prefix."""

_WHEN = {"type": ["string", "boolean", "null"]}

_VALUE = {"type": ["boolean", "number", "string", "null", "array", "object"]}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a sweep file.

    It accepts every valid sweep file, except for a sweep under the key `sweep`. It also accepts files that the reader
    refuses because of conflicts between keys.
    """
    text, integer = {"type": "string"}, {"type": "integer"}
    properties: dict[str, Any] = {
        "name": text,
        "trainable": text,
        "program": text,
        "command": {"type": "array", "items": {"type": ["string", "number"]}},
        "method": {"anyOf": [{"enum": [AUTO, *SEARCHERS]}, {"type": "string", "pattern": ":"}]},
        "parameters": {"$ref": "#/$defs/parameters"},
        "constraints": {"anyOf": [text, {"type": "array", "items": text}]},
        "early_terminate": {
            "anyOf": [*map(_scheduler, KNOWN), _wandbs_hyperband(), _own_scheduler(), {"enum": [NONE]}]
        },
        **{key: {"anyOf": [integer | {"minimum": 1}, {"enum": [NONE]}]} for key in ("max_iter", "run_cap")},
        "points_to_try": {"type": "array", "items": {"type": "object"}},
        **{name: {"anyOf": [text, {"type": "array", "items": text}]} for name in ("observers", "loggers")},
        "on_end": {"anyOf": [text, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]},
        "storage": {"anyOf": [{"type": "string", "pattern": "^s3://[^/]+"}, {"enum": [NONE]}]},
        "seed": integer | {"minimum": 0},
        "outcome_constraints": {"anyOf": [text, {"type": "array", "items": text}]},
        **{name: _object(settings) for name, settings in SECTIONS.items()},
        "metric": {"anyOf": [_metric(), {"type": "array", "items": _metric(), "minItems": 1}]},
        "repeats": {"anyOf": [integer | {"minimum": 1}, _object(Repeats), {"enum": [NONE]}]},
        **{name: {} for name in IGNORED},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpsearch sweep",
        "type": "object",
        "properties": {
            name: kind if name in IGNORED or name in ("method", "parameters") else _or_null(kind)
            for name, kind in properties.items()
        },
        "required": ["parameters"],
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
        "$defs": {
            "parameters": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/parameter"}},
            "parameter": _parameter(),
            "branches": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {
                    "anyOf": [{"$ref": "#/$defs/parameters"}, {"type": "object", "maxProperties": 0}, {"type": "null"}]
                },
            },
        },
    }


def with_key_tables(page: str) -> str:
    """Return a page of the documentation with its tables of keys updated, at `<!-- keys of limits -->`."""

    def table(match: re.Match[str]) -> str:
        name = match[2]
        settings = SECTIONS.get(name) or KNOWN[name]
        return f"{match[1]}\n{_key_table(settings, f'{name}.' if name in _DOTTED else '')}\n"

    return re.sub(r"(<!-- keys of (\w+) -->\n)\n(?:\|[^\n]*\n)*\n?", table, page)


def _key_table(settings: type[Settings], prefix: str) -> str:
    docs = _field_docs(settings)
    rows = [
        f"| `{prefix}{name}` | {_default(field)} | {docs[name]} |" for name, field in settings_fields(settings).items()
    ]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def _object(settings: type[Settings]) -> dict[str, Any]:
    docs = _field_docs(settings)
    fields = settings_fields(settings)
    return {
        "type": "object",
        "properties": {name: {**field.schema, "description": docs[name]} for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.required],
        "additionalProperties": False,
    }


def _metric() -> dict[str, Any]:
    out = _object(Metric)
    out["properties"] |= {name: {} for name in METRIC_IGNORED}
    return out


def _wandbs_hyperband() -> dict[str, Any]:
    """Return the schema of W&B's hyperband, whose keys differ from those of `Bands`."""
    integer = {"type": "integer", "minimum": 1}
    keys: dict[str, dict[str, Any]] = dict.fromkeys(("min_iter", "max_iter", "s"), integer)
    keys |= {"eta": {"type": "number"}, "strict": {"type": "boolean"}}
    return {
        "type": "object",
        "properties": {"type": {"const": "hyperband"}, **{name: _or_null(kind) for name, kind in keys.items()}},
        "anyOf": [{"required": ["type", key]} for key in ("min_iter", "max_iter")],
        "additionalProperties": False,
    }


def _scheduler(kind: str) -> dict[str, Any]:
    out = _object(KNOWN[kind])
    out["properties"] = {"type": {"const": kind}, **out["properties"]}
    out["required"] = ["type", *out["required"]]
    return out


def _own_scheduler() -> dict[str, Any]:
    named = {"type": "string", "pattern": ":", "description": "The import path of a class of settings of your own."}
    return {"type": "object", "properties": {"type": named}, "required": ["type"]}


def _parameter() -> dict[str, Any]:
    keys = {key for form in PARAMETER_FORMS.values() for key in form}
    properties: dict[str, Any] = {key: _VALUE for key in sorted(keys)}
    properties["distribution"] = {"enum": [*PARAMETER_FORMS, None]}
    properties["when"] = _WHEN
    plain = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [plain, _holding("parameters", {"$ref": "#/$defs/parameters"}), *map(_structure, STRUCTURE_FORMS)]}


def _structure(kind: str) -> dict[str, Any]:
    branches = {"$ref": "#/$defs/branches"}
    inside: dict[str, Any] = {
        "choice": branches,
        "repeat": {"$ref": "#/$defs/parameter"},
        "chain": {"anyOf": [{"type": "array", "minItems": 1}, branches]},
        "cell": {"anyOf": [{"type": "array", "minItems": 1}, branches]},
    }
    integer = {"type": ["integer", "null"], "minimum": 0}
    beside: dict[str, Any] = {
        key: {"enum": ["edge", "node", None]} if key == "each" else integer for key in STRUCTURE_FORMS[kind]
    }
    return _holding(kind, inside[kind], beside)


def _holding(kind: str, inside: dict[str, Any], beside: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a parameter that contains others under a key."""
    return {
        "type": "object",
        "properties": {kind: inside, **(beside or {}), "when": _WHEN},
        "required": [kind],
        "additionalProperties": False,
    }


def _or_null(kind: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}]}


def _default(field: SettingsField) -> str:
    if field.required:
        return "required"
    return "none" if field.default is None else f"`{json.dumps(field.default).strip(chr(34))}`"


def _field_docs(settings: type[Settings]) -> dict[str, str]:
    """Return field name to the docstring below it, including fields of base classes."""
    docs: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if issubclass(cls, Settings):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            assert isinstance(tree, ast.ClassDef)
            for field, following in zip(tree.body, tree.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    match following:
                        case ast.Expr(value=ast.Constant(value=str(text))):
                            docs[field.target.id] = " ".join(text.split())
    return docs


def _write(docs: Path) -> None:
    page = docs / "sweep-file.md"
    page.write_text(with_key_tables(page.read_text("utf-8")), "utf-8")
    (docs / "sweep.schema.json").write_text(json.dumps(json_schema(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
