"""Counts what a simplification is measured by. `python -m tests.counts [ROOT]`."""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

_PACKAGES = {"hpsearch": ".", "hpsearch_comm": "comm", "hpsearch_trainers": "trainers"}
"""Packages to their source roots."""

_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Module:
    """A file of Python: its package, room, tree and size."""

    def __init__(self, path: Path, name: str) -> None:
        text = path.read_text(encoding="utf-8")
        self.path, self.name, self.tree = path, name, ast.parse(text)
        parts = name.split(".")
        self.package = parts[0]
        self.room = ".".join(parts[:2]) if len(parts) > 2 or path.name == "__init__.py" else f"{parts[0]} (root)"
        self.lines, self.code = len(text.splitlines()), lines_of_code(text, self.tree)

    def imports(self, known: set[str]) -> set[str]:
        """Return which of the known modules it imports, anywhere in it; strings that name modules don't count."""
        found: set[str] = set()
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                inner = {f"{module}.{alias.name}" for alias in node.names}
                found.update(inner & known or {module})
        return (found & known) - {self.name}


def lines_of_code(text: str, tree: ast.AST) -> int:
    """Return how many lines hold code: no blanks, no comments, no docstrings, nor strings that stand alone."""
    texts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - texts)


def modules(root: Path) -> list[Module]:
    """Return all modules of the packages."""
    found = []
    for package, place in _PACKAGES.items():
        for path in sorted((root / place / package).rglob("*.py")):
            name = ".".join(path.relative_to(root / place).with_suffix("").parts).removesuffix(".__init__")
            found.append(Module(path, name))
    return found


def duplicate_classes(known: list[Module]) -> dict[str, list[str]]:
    """Return the names of public classes that occur more than once in a package, with their modules."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in known:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[module.package, node.name].append(module.name)
    return {name: found for (_, name), found in sorted(places.items()) if len(found) > 1}


def one_importer(known: list[Module]) -> dict[str, str]:
    """Return the modules under 100 lines that exactly one other module imports, with that one."""
    names = {module.name for module in known}
    importers: dict[str, list[str]] = defaultdict(list)
    for module in known:
        for name in module.imports(names):
            importers[name].append(module.name)
    small = [module.name for module in known if module.lines < 100 and module.path.name != "__init__.py"]
    return {name: importers[name][0] for name in small if len(importers[name]) == 1}


def circles(known: list[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, in functions and for types too."""
    names = {module.name for module in known}
    below = {module.name: module.imports(names) for module in known}
    reached = {name: _reached(name, below) for name in names}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in names}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached(name: str, below: dict[str, set[str]]) -> set[str]:
    found, rest = set(), [*below[name]]
    while rest:
        if (one := rest.pop()) not in found:
            found.add(one)
            rest += below[one]
    return found


def counts(root: Path) -> Iterator[str]:
    """Yield the counts, a line each."""
    known = modules(root)
    keys: dict[str, Callable[[Module], str]] = {"package": lambda one: one.package, "room": lambda one: one.room}
    for title, key in keys.items():
        for name in sorted({key(module) for module in known}):
            inside = [module for module in known if key(module) == name]
            yield f"{title} {name}: {sum(one.code for one in inside)} lines of code in {len(inside)} files"
    tests = [Module(path, "tests") for path in sorted((root / "tests").rglob("*.py"))]
    yield f"tests: {sum(one.code for one in tests)} lines of code in {len(tests)} files"
    openings = Counter(
        re.split(r"[\s:.,]", told.strip(), maxsplit=1)[0]
        for module in known
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (told := ast.get_docstring(node))
    )
    yield f"openings of function docstrings: {', '.join(f'{word} {count}' for word, count in openings.most_common(15))}"
    duplicates = duplicate_classes(known)
    yield f"public class names more than once in a package: {len(duplicates)}: {', '.join(duplicates)}"
    yield f"files under 100 lines with one importer: {len(one_importer(known))}"
    yield from (f"circle of {len(group)} files: {', '.join(group)}" for group in circles(known))
    pages = {"README": [root / "README.md"], "docs": [*(root / "docs").rglob("*.md")]}
    for name, paths in pages.items():
        yield f"words of {name}: {sum(len(path.read_text(encoding='utf-8').split()) for path in paths)}"
    functions = [node for one in known if one.package == "hpsearch" for node in one.tree.body]
    (search,) = (node.args for node in functions if isinstance(node, ast.FunctionDef) and node.name == "search")
    yield f"parameters of search(): {len(search.posonlyargs) + len(search.args) + len(search.kwonlyargs)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.counts", description="Count what should become less.")
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1], help="(default: here)")
    print("\n".join(counts(parser.parse_args().root)))
