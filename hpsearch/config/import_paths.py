"""Import paths such as `package.module:name`: importing, checking without import; tables; packages of extras."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from hpsearch.errors import HpsearchError, Interrupted, exception_line

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_TABLE = re.compile(r"(.+?\.ya?ml)(?:#(.*))?", re.DOTALL)


def is_import_path(text: str) -> bool:
    """Return whether a text has the form `package.module:name`."""
    return _IMPORT_PATH.fullmatch(text) is not None


def is_installed(package: str) -> bool:
    """Return whether a package can be imported. A folder with the same name, such as W&B's `wandb/`, doesn't count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def installing(extra: str) -> str:
    """Return the command that installs what an extra of hpsearch needs."""
    return f'pip install "hpsearch[{extra}]"'


def is_table(trainable: object) -> bool:
    """Return whether a trainable is the path of a table's description: `curves.yaml`, or `curves.yaml#task`."""
    return isinstance(trainable, str) and _TABLE.fullmatch(trainable) is not None


def table_and_task(trainable: str) -> tuple[str, str]:
    """Return the path of a description, whose folders may contain #, and the task; empty if there is none."""
    match = _TABLE.fullmatch(trainable)
    return (trainable, "") if match is None else (match[1], match[2] or "")


def import_object(spec: str, key: str, error_type: type[HpsearchError], search_path: Sequence[str] = ()) -> Any:
    """Import and return the object of an import path.

    Args:
        spec: The import path.
        key: The key of the sweep, for errors.
        error_type: Type of the errors.
        search_path: Folders that are prepended to `sys.path`. They stay there for later imports of the object.

    Raises:
        HpsearchError: Of type `error_type`. Names the part that cannot be imported, and the most similar one.
    """
    module_name, attribute = _split(spec, key, error_type)
    sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
    named = f"`{key}: {spec}`"
    return _attribute(_import(module_name, named, error_type, search_path), attribute, named, error_type)


def check_importable(spec: str, key: str, error_type: type[HpsearchError], search_path: Sequence[str] = ()) -> None:
    """Check that the top-level package of an import path exists, without importing it.

    Raises:
        HpsearchError: Of type `error_type`: the package does not exist.
    """
    outermost = _split(spec, key, error_type)[0].partition(".")[0]
    with _searched_first(search_path):
        if outermost not in sys.modules and importlib.util.find_spec(outermost) is None:
            raise error_type(_missing_module(outermost, f"`{key}: {spec}`", search_path))


def check_named(spec: str, key: str, error_type: type[HpsearchError], search_path: Sequence[str] = ()) -> None:
    """Check that the module of an import path exists and that its source contains the name, without importing it.

    Names that can only be checked by importing are accepted: those that a module defines dynamically or imports with
    `*`, and those of compiled modules.

    Raises:
        HpsearchError: Of type `error_type`: the module or the name does not exist.
    """
    check_importable(spec, key, error_type, search_path)
    module_name, attribute = _split(spec, key, error_type)
    with _searched_first(search_path):
        outermost, *inner = module_name.split(".")
        try:
            module = importlib.util.find_spec(outermost)
        except ValueError:  # for `__main__`, which has no spec
            return
        for depth, part in enumerate(inner, 1):
            folders = None if module is None else module.submodule_search_locations
            if folders is None:
                return
            # Search by the last part: with the full name, the parent of a namespace package would be imported.
            module = PathFinder.find_spec(part, list(folders))
            if module is None:
                path = ".".join([outermost, *inner[:depth]])
                nearest = _nearest([inner_module.name for inner_module in pkgutil.iter_modules(list(folders))], part)
                raise error_type(f"`{key}: {spec}` names the module {path!r}, which isn't there{nearest}")
    source = Path(module.origin) if module is not None and module.origin is not None else Path()
    if source.suffix != ".py" or not source.is_file():
        return
    text, name = source.read_text(encoding="utf-8", errors="replace"), attribute.partition(".")[0]
    if re.search(rf"\b{name}\b|import \*|__getattr__|globals\(|exec\(", text) is None:
        nearest = _nearest(re.findall(r"^(?:async )?(?:def|class) (\w+)", text, re.MULTILINE), name)
        raise error_type(f"`{key}: {spec}` names {name!r}, which isn't in {source}{nearest}")


@contextmanager
def _searched_first(folders: Sequence[str]) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _split(spec: str, key: str, error_type: type[HpsearchError]) -> tuple[str, str]:
    module_name, colon, attribute = spec.partition(":")
    if not (colon and module_name and attribute):
        raise error_type(
            f"`{key}` must be written `package.module:name`, but is {spec!r}: put a colon before the name of the "
            "function or class"
        )
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise error_type(
            f"`{key}` must be written `package.module:name`, but {spec!r} names a file: write {module}:{attribute}, "
            "and run from the folder where Python finds that module"
        )
    return module_name, attribute


def _import(module_name: str, named: str, error_type: type[HpsearchError], search_path: Sequence[str]) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:  # a module may raise anything, SystemExit included
        missing = (error.name or module_name) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise error_type(_missing_module(missing, named, search_path)) from error
        raise error_type(_import_mistake(module_name, named, error)) from error


def _missing_module(missing: str, named: str, search_path: Sequence[str]) -> str:
    folders = ", ".join(map(repr, search_path)) or "no folder of the sweep's"
    return (
        f"{named} names the module {missing!r}, which isn't there{_nearest_module(missing)}: "
        f"run from the folder that holds it, or install it (looked in {folders}, then where Python looks)"
    )


def _import_mistake(module_name: str, named: str, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        where = f", at {error.filename}:{error.lineno}"
    return f"{named} can't be imported: importing {module_name!r} raised {exception_line(error)}{where}"


def _nearest_module(missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else sys.path
    return _nearest([module.name for module in pkgutil.iter_modules(list(folders))], last)


def _nearest(names: Sequence[str], name: str) -> str:
    nearest = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def _attribute(module: ModuleType, attribute: str, named: str, error_type: type[HpsearchError]) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [name for name, entry in vars(value).items() if callable(entry) and name[0] != "_"]
            nearest = difflib.get_close_matches(part, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names) or 'no functions'}"
            owner = getattr(value, "__file__", None) or getattr(value, "__name__", repr(value))
            raise error_type(f"{named} names {part!r}, which isn't in {owner}: {hint}")
        value = getattr(value, part)
    return value
