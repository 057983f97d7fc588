"""The source of functions and classes, with the definitions that they need. Imports may name torch and Python only."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

from hpsearch_trainers.architectures.registry import operation

__all__ = ["NoSourceError", "Sources"]

_IMPORTABLE = sys.stdlib_module_names | {"torch"}
"""Packages that the source may import."""

_NONE = object()


class NoSourceError(ValueError):
    """An object whose source can't be included."""


@dataclass(frozen=True)
class _File:
    """A module's source.

    Attributes:
        text: The source.
        bound: Top-level names to the statements that bind them.
        changed: Names that other top-level statements may change, so that one statement doesn't define them.
    """

    text: str
    bound: dict[str, ast.stmt]
    changed: set[str]


class Sources:
    """Collects source: imports, and definitions, each after those that it needs.

    Args:
        imports: Names to import statements that are always included.
        reserved: Names that the file uses for something else.
    """

    def __init__(self, imports: dict[str, str], reserved: set[str]) -> None:
        self._imports = dict(imports)
        self._imported: dict[str, Any] = {}
        for statement in imports.values():
            exec(statement, self._imported)
        self._reserved = reserved
        self._definitions: dict[str, tuple[str, str]] = {}  # name to module and text
        self._files: dict[str, _File] = {}

    def add(self, target: Callable[..., Any]) -> str:
        """Include a function or class, with what it needs.

        Returns:
            Its name in the source.

        Raises:
            NoSourceError: It can't be included.
        """
        name = getattr(target, "__qualname__", repr(target))
        module = sys.modules.get(getattr(target, "__module__", None) or "")
        if module is None or "." in name or "<" in name or "(" in name:
            raise NoSourceError(f"{name} must be a function or class at the top of a file")
        if getattr(module, name, None) is not target:
            raise NoSourceError(f"{module.__name__}.{name} must be what was registered, and is something else now")
        self._include(module, name)
        if name not in self._definitions:
            raise NoSourceError(f"{module.__name__}.{name} must be defined at the top of its file")
        return name

    def imports(self) -> str:
        """Return the import statements."""
        statements = sorted(set(self._imports.values()), key=lambda text: (text.startswith("from"), text))
        of_torch = [text for text in statements if text.split()[1].split(".")[0] == "torch"]
        of_python = [text for text in statements if text not in of_torch]
        return "\n".join([*of_python, "", *of_torch])

    def definitions(self) -> str:
        """Return the definitions."""
        return "\n\n\n".join(text for _, text in self._definitions.values())

    def _include(self, module: ModuleType, name: str) -> None:
        """Include what a name of a module refers to; a local name is skipped."""
        file = self._file(module)
        location = f"{module.__name__}.{name}"
        statement = file.bound.get(name)
        if statement is None:
            if not hasattr(module, name) or hasattr(builtins, name):
                return
            raise NoSourceError(f"{location} must be defined, assigned or imported at the top of its file")
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._include_import(module, name, statement)
            return
        if name in self._definitions:
            if self._definitions[name][0] != module.__name__:
                other_module = self._definitions[name][0]
                raise NoSourceError(f"{location} must have another name than {other_module}.{name}: both are needed")
            return
        if name in file.changed or _differs(module, name, statement):
            raise NoSourceError(f"{location} must be defined by one statement, and is changed after it")
        if name in self._reserved or name in self._imports:
            raise NoSourceError(f"{location} must have another name, since the stand-alone file has one of that name")
        self._definitions[name] = (module.__name__, "")  # two functions may call each other
        for needed in _needs(statement, module):
            self._include(module, needed)
        del self._definitions[name]  # so that it comes after what it needs
        self._definitions[name] = (module.__name__, _text(file, statement, module))

    def _include_import(self, module: ModuleType, name: str, statement: ast.Import | ast.ImportFrom) -> None:
        alias = next(candidate for candidate in statement.names if _name(candidate) == name)
        suffix = f" as {alias.asname}" if alias.asname else ""
        if isinstance(statement, ast.Import):
            source, text = alias.name, f"import {alias.name}{suffix}"
        else:
            source = resolve_name("." * statement.level + (statement.module or ""), module.__package__)
            text = f"from {source} import {alias.name}{suffix}"
        if source.split(".")[0] not in _IMPORTABLE:
            owner = sys.modules.get(source)
            if isinstance(statement, ast.Import) or owner is None or alias.name not in self._file(owner).bound:
                raise NoSourceError(f"{module.__name__} must need nothing but torch and Python, and needs {text!r}")
            if name != alias.name:
                raise NoSourceError(f"{module.__name__} must import {alias.name} under its own name, got {text!r}")
            self._include(owner, name)
            return
        value = getattr(module, name)
        if name in self._reserved or name in self._definitions or self._imported.get(name, value) is not value:
            raise NoSourceError(
                f"{module.__name__} must import {name} under another name, since the stand-alone file has one of that "
                f"name: {text!r}"
            )
        if self._imports.setdefault(name, text) != text and "." in text and text.startswith("import"):
            self._imports[f"{name} {text}"] = text  # `import a.b` and `import a`
        self._imported[name] = value

    def _file(self, module: ModuleType) -> _File:
        if module.__name__ not in self._files:
            try:
                text = inspect.getsource(module)
            except (OSError, TypeError) as error:
                raise NoSourceError(f"{module.__name__} must be a file with source: {error}") from error
            bound: dict[str, ast.stmt] = {}
            changed: set[str] = set()
            for statement in ast.parse(text).body:
                names = list(_binds(statement))
                changed |= {name for name in names if name in bound} | (_stored(statement) - set(names))
                bound |= dict.fromkeys(names, statement)
            self._files[module.__name__] = _File(text, bound, changed)
        return self._files[module.__name__]


def _binds(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from map(_name, names)
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name


def _name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _stored(statement: ast.stmt) -> set[str]:
    """Return the names that a statement may change: what it assigns, assigns inside of, or calls a method of."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom):
        return set()
    names = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del()):
                names |= {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if isinstance(statement, ast.Expr):
                names.add(name)
    return names


def _differs(module: ModuleType, name: str, statement: ast.stmt) -> bool:
    """Return whether a constant no longer has the value in its source."""
    value = getattr(statement, "value", None)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or value is None:
        return False
    try:
        written = ast.literal_eval(value)
    except (ValueError, TypeError):
        return False
    return bool(written != getattr(module, name, _NONE))


def _needs(statement: ast.stmt, module: ModuleType) -> list[str]:
    """Return the names that a statement reads, without the decorators that register operations."""
    skipped = {id(decorator) for decorator in _decorators(statement) if _registers(decorator, module)}
    nodes: list[ast.AST] = [statement]
    names = []
    while nodes:
        node = nodes.pop()
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.append(node.id)
        nodes += reversed(list(ast.iter_child_nodes(node)))
    return list(dict.fromkeys(names))


def _text(file: _File, statement: ast.stmt, module: ModuleType) -> str:
    """Return a statement's source, without the decorators that register operations."""
    decorators = [
        f"@{ast.unparse(decorator)}" for decorator in _decorators(statement) if not _registers(decorator, module)
    ]
    return "\n".join([*decorators, ast.get_source_segment(file.text, statement) or ""])


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return getattr(statement, "decorator_list", [])


def _registers(decorator: ast.expr, module: ModuleType) -> bool:
    """Return whether a decorator is `operation(...)`, under any name."""
    if not isinstance(decorator, ast.Call):
        return False
    value: Any = module
    for name in ast.unparse(decorator.func).split("."):
        value = getattr(value, name, None)
    return value is operation
