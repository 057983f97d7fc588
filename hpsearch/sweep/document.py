"""Parsing of YAML files into plain values, with the location of every key for errors.

Types are those of PyYAML's SafeLoader, except that numbers follow the core schema of YAML 1.2: `1e-4` and `-.5` are
floats, `010` is ten. Numbers of YAML 1.1 only (`1_000`, `0b11`, and `1:30` for 90) would silently become strings, and
are refused. Booleans include `yes` and `off`, as in W&B. Size, depth and the number of values (including aliases) are
limited, so that no file needs much time or memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hpsearch.config.checks import InvalidKey, InvalidKeys, KeyPath, shown
from hpsearch.errors import SweepError

_MOST_BYTES = 1_000_000
_MOST_VALUES = 100_000
_DEEPEST = 40

_MERGE = "tag:yaml.org,2002:merge"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_FORMER_NUMBER = "tag:yaml.org,2002:float of YAML 1.1"

_NUMBERS = {
    _INT: re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    _FLOAT: re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}


class _Loader(yaml.SafeLoader):
    """The SafeLoader, with the numbers of YAML 1.2's core schema."""

    # First, so that they take precedence. A number that only the other resolvers match is YAML 1.1 only.
    yaml_implicit_resolvers = {  # noqa: RUF012 (the base class defines it)
        first: [
            *_NUMBERS.items(),
            *((_FORMER_NUMBER if tag in _NUMBERS else tag, pattern) for tag, pattern in resolvers),
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Return an integer. PyYAML's own method would read 010 as octal."""
        value = str(self.construct_scalar(node))
        if not _NUMBERS[_INT].match(value):
            raise ValueError(f"got {shown(value)}")
        return int(value, 0) if value[:2] in ("0o", "0x") else int(value)


_Loader.add_constructor(_INT, _Loader.construct_integer)


@dataclass
class Document:
    """A parsed file."""

    name: str
    """Name of the file, as given by the user."""
    value: object
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Line of each key, from 1."""

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest enclosing section in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def located(self, error: InvalidKey | InvalidKeys) -> SweepError:
        """Return the error with the file and the line of each mistake."""
        lines = (f"{self.name}:{self.line(mistake.key)}: {mistake}" for mistake in error.mistakes)
        return SweepError("\n".join(lines))


def read_document(path: Path, kind: str = "sweep") -> Document:
    """Read and parse a file.

    Args:
        path: Path of the file.
        kind: What the file describes, for errors.

    Raises:
        SweepError: The file cannot be read or is not valid YAML. Names file and line.
    """
    return parse_document(read_text(path, kind), str(path), kind=kind)


def read_text(path: Path, kind: str = "sweep") -> str:
    """Return the text of a file.

    Raises:
        SweepError: The file cannot be read, or is too large.
    """
    name = str(path)
    try:
        if not path.is_file():
            status = "is a directory" if path.is_dir() else "isn't a file" if path.exists() else "doesn't exist"
            raise SweepError(f"{name}: must be a {kind} file, but it {status}")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SweepError(f"{name}: must be a readable {kind} file; {error}") from None
    if len(content) > _MOST_BYTES:
        raise SweepError(f"{name}: must be a {kind} file of at most {_MOST_BYTES:,} bytes, got more")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SweepError(f"{name}:{line}: must be UTF-8 text, got the byte {content[error.start]:#04x}") from None


def parse_value(text: str, name: str) -> object:
    """Parse the value of `--set KEY=VALUE`; errors start with `name`."""
    return parse_document(text, name, empty_is_null=True).value


def parse_document(
    text: str, name: str, empty_is_null: bool = False, kind: str = "sweep", lines: Sequence[int] | None = None
) -> Document:
    """Parse the text of a file.

    Args:
        text: YAML.
        name: The file, for errors.
        empty_is_null: An empty text is null; False: it is an error.
        kind: What the file describes, for errors.
        lines: For each line of the text, its line number in the file; None: the numbers are the same.

    Raises:
        SweepError: The text isn't valid YAML, or has a value that isn't supported; the message names file and line.
    """
    document = Document(name, None)
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None and not empty_is_null:
            raise SweepError(f"{name}: must hold a {kind}, but it is empty")
        if node is not None:
            document.value = _Builder(loader, document, lines).build(node, ())
    except yaml.reader.ReaderError as error:
        # PyYAML refuses control characters before it counts lines.
        line = text[: error.position].count("\n") + 1
        raise SweepError(f"{name}:{line}: must be text, got the character {error.character:#04x}") from None
    except yaml.MarkedYAMLError as error:
        raise SweepError(f"{name}:{_line(error)}: must be valid YAML: {_message(error)}") from None
    except RecursionError:
        raise SweepError(f"{name}:1: must not be nested deeper than {_DEEPEST} levels") from None
    except InvalidKey as error:
        raise SweepError(f"{name}:{document.line(error.key)}: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return document


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else mark.line + 1


def _message(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, yaml.composer.ComposerError) and error.context == "expected a single document in the stream":
        return "a second document begins here, but a file must have one"
    parts = [text for text in (error.context, error.problem) if text]
    return ", ".join(parts).replace("\n", " ")


class _Builder:
    """Converts the node graph of YAML to plain values, and records the location of each key."""

    def __init__(self, loader: _Loader, document: Document, lines: Sequence[int] | None) -> None:
        self._loader = loader
        self._numbers = lines
        self._lines = document.lines
        self._count = 0

    def _line(self, node: yaml.Node) -> int:
        line: int = node.start_mark.line
        return line + 1 if self._numbers is None else self._numbers[min(line, len(self._numbers) - 1)]

    def build(self, node: yaml.Node, path: KeyPath) -> object:
        self._lines.setdefault(path, self._line(node))
        self._add(1, path)
        if len(path) > _DEEPEST:
            raise InvalidKey(path[:3], f"must not be nested deeper than {_DEEPEST} levels")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        kind = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise InvalidKey(path, f"must be plain YAML, got the tag {shown(node.tag)}")
        if kind == "seq":
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _add(self, values: int, path: KeyPath) -> None:
        self._count += values
        if self._count > _MOST_VALUES:
            raise InvalidKey(path, f"must hold at most {_MOST_VALUES:,} values, aliases counted")

    def _refused(self, node: yaml.Node, path: KeyPath, problem: str, advice: str = "") -> InvalidKey:
        """Return the error of a key at this node's line, instead of where the key was first seen."""
        self._lines[path] = self._line(node)
        return InvalidKey(path, problem, advice)

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, object]:
        out: dict[str, object] = {}
        for name, key, value in self._pairs(node, path):
            if name in out:
                first = self._lines[(*path, name)]
                raise self._refused(key, (*path, name), f"must not be repeated, got it again (first in line {first})")
            out[name] = self._entry(key, value, (*path, name))
        for name, key, value in self._merged(node, path):
            if name not in out:
                out[name] = self._entry(key, value, (*path, name))
        return out

    def _entry(self, key: yaml.Node, value: yaml.Node, path: KeyPath) -> object:
        self._lines[path] = self._line(key)
        return self.build(value, path)

    def _pairs(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield (key, key node, value node) of a mapping, without merged keys. Keys must be strings."""
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            name = self._scalar(key, path) if isinstance(key, yaml.ScalarNode) else key.value
            if not isinstance(name, str):
                written = f"; write '{key.value}'" if isinstance(key, yaml.ScalarNode) and key.value else ""
                raise self._refused(key, path, f"must have strings as keys, got {shown(name)}{written}")
            yield name, key, value

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield the same for the keys that `<<` merges; if a key is repeated, the first counts."""
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    raise self._refused(key, path, "must merge (<<) a mapping or a list of mappings")
                self._add(1 + len(source.value), path)
                yield from self._pairs(source, path)
                yield from self._merged(source, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        if node.tag == _FORMER_NUMBER:
            raise self._refused(
                node,
                path,
                f"must be a number in every version of YAML, or a text in quotes, got {shown(node.value)}",
                "YAML 1.1 takes it for a number and YAML 1.2 for a text: write 1000 for 1_000, 90 for 1:30",
            )
        try:
            return self._loader.construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:  # such as a date with month 13
            kind = node.tag.rsplit(":", 1)[-1]
            reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
            raise self._refused(node, path, f"must be a valid {kind} or a string in quotes; {reason}") from None
