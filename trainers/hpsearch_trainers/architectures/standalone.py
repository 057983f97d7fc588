"""Write a network as a Python file that builds it and loads its weights, and needs only torch."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures.calls import Call, module
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.registry import operation
from hpsearch_trainers.architectures.shapes import Shape

_IMPORTABLE = sys.stdlib_module_names | {"torch"}
"""Packages that the source may import."""


class NoSourceError(ValueError):
    """An object whose source can't be included."""


@dataclass(frozen=True)
class _File:
    """A module's source.

    Attributes:
        text: The source.
        bound: Top-level names to the statements that bind them.
    """

    text: str
    bound: dict[str, ast.stmt]


class Sources:
    """Collects source code: imports, and definitions in the order of their dependencies.

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
        """Include the definition or import of a module's name; skip a local name."""
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
            bound = {name: statement for statement in ast.parse(text).body for name in _binds(statement)}
            self._files[module.__name__] = _File(text, bound)
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


_WIDTH = 120
"""Columns of a line, where it can be broken."""

_IMPORTS = {"sys": "import sys", "torch": "import torch", "nn": "from torch import nn"}

_FILE = '''"""A network, written by hpsearch. It needs nothing but torch.

`python FILE WEIGHTS` loads the weights and prints the network. `build` returns it, `load` returns it with its weights.
"""

from __future__ import annotations

{imports}

INPUTS = {inputs}
"""The shape of the input, without the batch."""


{definitions}


def build() -> nn.Module:
    """Return the network, with new weights."""
    return {network}


def load(path: str) -> nn.Module:
    """Return the network with the weights of a file: its state_dict, or a checkpoint with the key `model`.

    If a checkpoint has a moving average of the weights, as `average`, that is loaded: it was validated.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state.get("average"), dict):
        kept = state["average"].items()
        state = {{name.removeprefix("module."): one for name, one in kept if name != "n_averaged"}}
    elif isinstance(state.get("model"), dict):
        state = state["model"]
    network = build()
    network.load_state_dict(state)
    return network


if __name__ == "__main__":
    network = load(sys.argv[1]) if len(sys.argv) > 1 else build()
    network.eval()
    print(network)
    with torch.no_grad():
        outputs = network(torch.zeros(1, *INPUTS))
    print(f"{{sum(one.numel() for one in network.parameters())}} parameters, outputs {{tuple(outputs.shape)}}")
'''


def standalone(
    value: Any,
    inputs: Shape = (1, 8, 8),
    outputs: int = 10,
    *,
    stem: Any = None,
    head: Any = None,
    path: str = "architecture",
) -> str:
    """Return the source of a Python file that builds what `network` builds, and needs only torch.

    Its `build()` returns the network, with the same names of weights; `load(path)` loads them from a file. The current
    source of operations is included, with the functions, classes and constants that it needs.

    Args:
        value: As in `network`.
        inputs: As in `network`.
        outputs: As in `network`.
        stem: As in `network`.
        head: As in `network`.
        path: As in `network`.

    Raises:
        ArchitectureError: No network can be built from it; or an operation has no source, as in a notebook, or needs
            more than torch and Python.
    """
    call = plan_network(value, inputs, outputs, stem=stem, head=head, path=path)
    shape = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    sources = Sources(_IMPORTS, {"INPUTS", "build", "load", "network", "outputs"})
    try:
        network = _source(call, sources, 4, len("return "))
        text = _FILE.format(
            imports=sources.imports(),
            inputs=shape,
            definitions=sources.definitions(),
            network=network,
        )
    except NoSourceError as error:
        raise ArchitectureError(path, f"can't be written as a standalone file: {error}") from error
    _compare(text, call, shape, path)
    return text


def _source(term: Any, sources: Sources, indent: int, before: int = 0) -> str:
    """Return a term as source code, on one line if it fits after `before` characters."""
    opening, parts, closing = _parts(term, sources, indent)
    line = opening + ", ".join(parts) + closing
    if not parts or ("\n" not in line and indent + before + len(line) < _WIDTH):
        return f"({parts[0]},)" if isinstance(term, tuple) and len(term) == 1 else line
    inner = " " * (indent + 4)
    return opening + "\n" + "".join(f"{inner}{part},\n" for part in parts) + " " * indent + closing


def _parts(term: Any, sources: Sources, indent: int) -> tuple[str, list[str], str]:
    """Return the opening of a term, its parts, and its closing."""
    inside = indent + 4
    if isinstance(term, Call):
        parts = [_source(item, sources, inside) for item in term.arguments]
        parts += [f"{name}={_source(item, sources, inside, len(name) + 1)}" for name, item in term.keywords.items()]
        return _function(term, sources) + "(", parts, ")"
    if isinstance(term, Mapping):
        keys = [(_literal(key), item) for key, item in term.items()]
        return "{", [f"{key}: {_source(item, sources, inside, len(key) + 2)}" for key, item in keys], "}"
    if isinstance(term, list | tuple):
        opening, closing = "[]" if isinstance(term, list) else "()"
        return opening, [_source(item, sources, inside) for item in term], closing
    return _literal(term), [], ""


def _function(call: Call, sources: Sources) -> str:
    name = getattr(call.function, "__name__", "")
    if getattr(nn, name, None) is call.function:
        return f"nn.{name}"
    return sources.add(call.function)


def _literal(value: Any) -> str:
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        text = repr(value)
        plain = type(value) is str and not {'"', "\\"} & set(text[1:-1])
        return f'"{text[1:-1]}"' if plain else text
    raise NoSourceError(f"a parameter must be a number, a text, true or false, or none, got {value!r}")


def _compare(text: str, call: Call, inputs: Shape, path: str) -> None:
    """Raise ArchitectureError unless the source builds the same network as the call, to the weights and outputs.

    It fails, for example, if a constant was changed after the statement that defines it.
    """
    written = ModuleType("hpsearch_standalone_network")
    sys.modules[written.__name__] = written
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            exec(compile(text, written.__name__, "exec"), written.__dict__)
            rows = torch.rand(2, *inputs)
            is_same = _seen(written.build, rows) == _seen(partial(module, call), rows)
    except Exception as error:
        raise ArchitectureError(
            path, f"can't be written as a standalone file: it fails there with {type(error).__name__}: {error}"
        ) from error
    finally:
        del sys.modules[written.__name__]
    if not is_same:
        raise ArchitectureError(
            path, "can't be written as a standalone file: it is another network there, or computes something else"
        )


def _seen(build: Callable[[], nn.Module], rows: Tensor) -> list[object]:
    """Return what a network is and computes: its text, and bytes of its weights and of its outputs in both modes."""
    torch.manual_seed(0)
    network = build()
    seen: list[object] = [str(network)]
    for mode in (True, False):
        seen += [
            (name, tuple(tensor.shape), tensor.dtype, _bytes(tensor)) for name, tensor in network.state_dict().items()
        ]
        torch.manual_seed(0)
        seen.append(_bytes(network.train(mode)(rows)))
    return seen


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
