"""Names that users and stored files hold, which stay whatever is renamed behind them."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpsearch.cli.parser import build_parser

ROOT = Path(__file__).parents[2]

_DESIGNED = "hpsearch.design.designed_network"
_STORED = tuple(f"{_DESIGNED}:{name}" for name in ("DesignedNetwork", "flops", "parameter_count"))
"""Import paths that studies hold, as `hpsearch design` writes them."""

_TAGS = ("hpsearch.study", "hpsearch.trial")
"""Of MLflow's runs; written as import paths are."""

_PATH = re.compile(r"(?<![\w.])hpsearch(?:_comm|_trainers)?(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?")
_IMPORT = re.compile(r"\bfrom (hpsearch[\w.]*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")


def names_of(tables: Mapping[str, str]) -> list[str]:
    """Return the names, each with its kind.

    Args:
        tables: The tables among the goldens: their columns and keys.
    """
    lines = [f"exit code {code}" for code in re.findall(r"^  (\d+) ", build_parser().epilog or "", re.MULTILINE)]
    lines += _flags(build_parser())
    for name, text in tables.items():
        if name.endswith(".csv"):
            lines += [f"column {name} {column}" for column in text.splitlines()[0].split(",")]
        elif name.endswith(".json"):
            rows = json.loads(text)
            lines += [f"key {name} {key}" for row in (rows if isinstance(rows, list) else [rows]) for key in row]
    schema = json.loads((ROOT / "docs" / "sweep.schema.json").read_text(encoding="utf-8"))
    lines += [f"sweep {key}" for key in _sweep_keys(schema)]
    lines += [f"seed label {label}" for label in _seed_labels() if re.search("[a-z]", label)]
    for package in ("hpsearch", "hpsearch_comm", "hpsearch_trainers"):
        lines += [f"public {package}.{name}" for name in import_module(package).__all__]
    lines += [f"path {path}" for path in documented_paths() if is_there(path)]
    return sorted(set(lines))


def documented_paths() -> list[str]:
    """Return the import paths that README, docs and configs name; names of variables may be among them."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "configs").rglob("*.*")]
    found = set(_STORED)
    for page in pages:
        if page.suffix in (".md", ".yaml", ".py"):
            text = page.read_text(encoding="utf-8")
            found.update(_PATH.findall(text))
            for module, names in _IMPORT.findall(text):
                found.update(f"{module}:{name.split()[0]}" for name in names.split(", "))
    return sorted(found.difference(_TAGS))


def is_there(path: str) -> bool:
    """Return whether there is such an import path, `package.module:name` or `package.module.name`.

    The module is read, not imported: some need libraries that are optional.
    """
    module, _, name = path.partition(":")
    parts, names = module.split("."), [name] if name else []
    while parts:
        try:
            spec = find_spec(".".join(parts))
        except ModuleNotFoundError:
            spec = None
        if spec is not None:
            tree = ast.parse(Path(spec.origin or "").read_text(encoding="utf-8"))
            return not names or names[0] in _bound(tree.body)
        names.insert(0, parts.pop())
    return False


def _bound(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module binds."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)
            case ast.Assign(targets=targets):
                yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=body):  # the names that are imported when they are asked for first
                yield from _bound(body)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield f"command {command.prog}"
                yield from _flags(command)
        else:
            yield from (f"flag {parser.prog} {flag}" for flag in action.option_strings)
            yield from (f"flag {parser.prog} {action.option_strings[0]} {word}" for word in _words(action))


def _words(action: argparse.Action) -> Iterable[str]:
    return action.choices if action.choices is not None and action.option_strings else ()


def _sweep_keys(schema: Mapping[str, Any], under: str = "") -> Iterator[str]:
    """Yield the keys that a part of a sweep file may hold, and the words that may be their values."""
    properties = schema.get("properties", {})
    kind = properties.get("type", {}).get("const")
    under = f"{under}.{kind}" if kind else under
    for key, inside in properties.items():
        name = f"{under}.{key}".lstrip(".")
        yield name
        yield from _sweep_keys(inside, name)
    for word in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]:
        yield f"{under} = {json.dumps(word)}"
    inner = [*schema.get("anyOf", []), schema.get("items"), schema.get("additionalProperties")]
    for inside in inner:
        if isinstance(inside, dict):
            yield from _sweep_keys(inside, under)
    for name, inside in schema.get("$defs", {}).items():
        yield from _sweep_keys(inside, f"<{name}>")


def _seed_labels() -> Iterator[str]:
    """Yield the words that are hashed with a seed, as the source has them."""
    for path in sorted((ROOT / "hpsearch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value.startswith(b"hpsearch "):
                yield node.value.decode()
    for path in sorted((ROOT / "trainers").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="_drawn"), args=[ast.Constant(value=str(text))]):
                    yield text
                case ast.Call(func=ast.Attribute(attr="_drawn"), args=[ast.JoinedStr(values=parts)]):
                    yield _template(parts)
                case ast.Call(
                    func=ast.Attribute(attr="sha256"),
                    args=[ast.Call(func=ast.Attribute(value=ast.JoinedStr(values=parts)))],
                ):
                    yield _template(parts)


def _template(parts: Iterable[ast.expr]) -> str:
    """Return an f-string's text with `{}` for each of its values."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
