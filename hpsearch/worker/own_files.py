"""The source files of the trainable's own code: their digest, and whether they were edited since.

`OwnFiles` finds them by reading, without running anything: the script, or the trainable's module, and the user's own
modules that it imports by name. `LoadedCode` looks at the modules that this process has imported. Installed packages
don't count, except the trainable's own.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from hpsearch.trainable.trainables import unwrapped
from hpsearch.worker.job import CommandLine, Job

_MOST_FILES = 500

_SCRIPTS = (".py", ".sh")
"""Words of a command with these endings are source files; it may write to other files."""

MODULE_OPTIONS = ("-m", "--module")
"""Options of Python and its launchers that precede a module's name."""


class OwnFiles:
    """The user's own files of a study's trainable, as they are when this object is created.

    Args:
        job: The study's job.
    """

    def __init__(self, job: Job) -> None:
        files, self._by_value = _files(job)
        self._digests = {path: _content(path) for path in files}
        self._stamps = {path: _stamp(path) for path in files}
        self.contents = tuple(sorted((path.name, content) for path, content in self._digests.items()))
        """Name and digest of each file."""
        text = "\n".join(f"{name} {content}" for name, content in self.contents)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
        """Digest of their names and contents; empty if no file is known."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files: the trainable's own first, then those that it imports."""
        return tuple(self._digests)

    def edit_note(self) -> str | None:
        """Return a message on a file that was edited since then; None if there is none."""
        for path, stamp in self._stamps.items():
            now = _stamp(path)
            if now is None or now == stamp or path == self._by_value:
                continue  # a missing file may be about to return
            if _content(path) not in ("", self._digests[path]):
                return (
                    f"{path} was edited, but the trials of a run must run the same code: ending at the next reports; a "
                    "resume goes on with the new code"
                )
            self._stamps[path] = now
        return None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _files(job: Job) -> tuple[list[Path], Path | None]:
    """Return the files, and the file whose code was passed as an object, so that an edit has no effect."""
    roots: list[Path] = []
    package = ""
    by_value: Path | None = None
    folders = [*job.search_path, *sys.path]
    target = unwrapped(job.trainable)
    if isinstance(target, CommandLine):
        here = Path(target.directory)
        candidates = [target.program or "", *(word for word in target.command if word.endswith(_SCRIPTS))]
        roots = [path for word in candidates if word and (path := here / word).is_file()]
        folders = [*(str(root.parent) for root in roots), str(here), *folders]
        names = [name for option, name in itertools.pairwise(target.command) if option in MODULE_OPTIONS]
        names = [target.program if name == "${program}" and target.program else name for name in names]
    elif isinstance(target, str):
        names = [target.partition(":")[0]]
    else:
        names = [str(getattr(target, "__module__", ""))]
    for name in names:
        package = name.partition(".")[0]
        if name == "__main__" and isinstance(main := getattr(sys.modules.get(name), "__file__", None), str):
            by_value = Path(main)
            roots.append(by_value)
        roots += module_files(name, folders, package)
    files: dict[Path, None] = {}
    while roots and len(files) < _MOST_FILES:
        path = roots.pop()
        if path not in files:
            files[path] = None
            if path.suffix == ".py":
                roots += (file for name in _imports(path, folders) for file in module_files(name, folders, package))
    return list(files), by_value


def _imports(path: Path, folders: Sequence[str]) -> Iterator[str]:
    """Return the names that a file imports and that may be modules."""
    try:
        statements = _import_statements(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for level, base, names in statements:
        if level is None:
            yield from names
            continue
        if level > len(path.parents):
            continue
        if level:
            inside = path.parents[level - 1]
            base = ".".join([*_dotted(inside, folders), *([base] if base else [])])
        yield base
        yield from (f"{base}.{name}" for name in names)


@lru_cache(maxsize=_MOST_FILES)
def _import_statements(source: bytes) -> tuple[tuple[int | None, str, tuple[str, ...]], ...]:
    """Return the level, the module and the names of each import of a file; `import a` has no level.

    Parsing takes most of the time, and the searches of one process mostly have the same files.
    """
    return tuple(
        (node.level, node.module or "", tuple(alias.name for alias in node.names))
        if isinstance(node, ast.ImportFrom)
        else (None, "", tuple(alias.name for alias in node.names))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _dotted(package: Path, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a package's dotted name, from the innermost folder that contains it."""
    holding = [folder for name in folders if (folder := Path(name or os.curdir).absolute()) in package.parents]
    innermost = max(holding, key=lambda folder: len(folder.parts), default=package.parent)
    return package.relative_to(innermost).parts


def module_files(name: str, folders: Sequence[str], package: str) -> list[Path]:
    """Return the user's own files that importing a module runs: its packages' and its own."""
    outermost, *inner = name.split(".")
    if not outermost or outermost in sys.stdlib_module_names:
        return []
    files, spec = [], _outermost(outermost, tuple(folders))
    for submodule in [*inner, None]:
        if spec is None:
            break
        if spec.origin is not None and spec.has_location:
            if not is_own(outermost, str(Path(spec.origin).absolute()), package):
                break
            files.append(Path(spec.origin).absolute())
        if submodule is None or spec.submodule_search_locations is None:
            break
        # Only by its last part: the full name of a submodule would require importing its parent.
        spec = PathFinder.find_spec(submodule, list(spec.submodule_search_locations))
    return files


def _outermost(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    if (spec := PathFinder.find_spec(name, list(folders))) is not None:
        return spec
    try:
        return importlib.util.find_spec(name)  # for example of an editable installation; it runs nothing of the module
    except (ImportError, ValueError):
        return None


_OURS = frozenset(("hpsearch", "hpsearch_comm", "hpsearch_trainers"))
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LIBRARY = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


class LoadedCode:
    """Checks the files of the modules that this process has imported, except installed ones."""

    def __init__(self) -> None:
        self._last_look = time.time_ns()
        self._at_first_check: dict[str, tuple[int, tuple[int, int]]] = {}
        """Of each file a time before its import, in nanoseconds, and its stamp."""

    def edited(self) -> str | None:
        """Return the name of a module whose file was written since its import; None: there is none.

        For a module imported since the last check, edits count from that check on.
        """
        edited, now = None, time.time_ns()
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or not is_own(name, path):
                continue
            stamp = _stamp(Path(path))
            if stamp is None:  # a missing file can't be run by others, either
                continue
            since, first = self._at_first_check.setdefault(path, (self._last_look, stamp))
            if stamp != first or stamp[0] > since:
                edited = name
        self._last_look = now
        return edited


def is_own(name: str, path: str, package: str = "") -> bool:
    """Return whether a module is the user's: not of the standard library, ours, or installed.

    Args:
        name: The module's.
        path: Path of its file.
        package: The user's own top-level package, which may be installed.
    """
    outermost = name.partition(".")[0]
    if outermost in _OURS or not path.startswith("/"):  # torch's `ops` and `classes` name files that don't exist
        return False
    if any(folder in path for folder in _INSTALLED):
        return outermost == package and package != "__main__"
    return not path.startswith(_LIBRARY)
