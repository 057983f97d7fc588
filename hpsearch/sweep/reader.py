"""Typed reading of plain values. Every mistake is an `InvalidKey` with its full path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from hpsearch.config.checks import Add, InvalidKey, InvalidKeys, KeyPath, Mistakes, nearest, plain, shown, text
from hpsearch.config.observer_names import check_observer
from hpsearch.config.settings import NONE, Settings, settings_fields

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound=Settings)

Kind = Callable[[object, KeyPath], T]
"""Function of a value and its path that returns the validated value."""


class KeyReader:
    """Reads a mapping with a fixed set of keys, key by key.

    `build` reports unknown keys together with the other mistakes.

    Args:
        value: The mapping.
        path: Path of the mapping.
        keys: The known keys.
        hints: Advice for unknown keys that users write.
        renamed: Argument name of the constructor passed to `build` to its key, if they differ.
    """

    def __init__(
        self,
        value: object,
        path: KeyPath,
        keys: Sequence[str],
        hints: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(value, Mapping):
            raise InvalidKey(path, f"must be a mapping with keys such as {', '.join(keys[:3])}, got {shown(value)}")
        self.value = value
        self._renamed = renamed or {}
        self.path = path
        self.mistakes = Mistakes()
        self._misspelt: set[str] = set()
        for key in value:
            if not isinstance(key, str):
                raise InvalidKey(path, f"must have strings as keys, got {shown(key)}")
            if key not in keys:
                advice = (hints or {}).get(key) or nearest(key, keys)
                self._misspelt.update(candidate for candidate in keys if advice == f"did you mean {candidate}?")
                self.mistakes.errors.append(InvalidKey((*path, key), "isn't a known key", advice))

    def has(self, key: str) -> bool:
        """Return whether a key has a value; null counts as missing."""
        return self.value.get(key) is not None

    def require(self, key: str, example: str | None = None) -> None:
        """Raise an error if a key is missing; `example` is the line to add."""
        if key in self.value:
            return
        if key in self._misspelt:
            raise InvalidKeys(())  # already reported as a misspelt key
        add: Add | None = None if example is None else (self.path, example)
        raise InvalidKey((*self.path, key), "is required", add=add)

    def get(self, key: str, kind: Kind[T], example: str | None = None) -> T:
        """Return the value of a required key."""
        self.require(key, example)
        return kind(self.value[key], (*self.path, key))

    def read(self, kinds: Mapping[str, Kind[Any]], required: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of keys; collect mistakes. `required` maps required keys to the line to add."""
        values = {}
        for key, kind in kinds.items():
            with self.mistakes.collect():
                if key in required or self.has(key):
                    values[key] = self.get(key, kind, required.get(key))
        return values

    def build(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a constructor returns. Its errors name the key instead of the argument.

        Raises:
            InvalidKey, InvalidKeys: The constructor raised an error, or mistakes were collected before.
        """
        self.mistakes.raise_collected()
        try:
            return make(*args, **kwargs)
        except InvalidKey as error:
            key = (*(self._renamed.get(str(part), part) for part in error.key[:1]), *error.key[1:])
            raise InvalidKey(key, error.problem, error.advice, error.add).under(self.path) from None


def listed(value: object, path: KeyPath) -> list[Any]:
    """Return a list."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidKey(path, f"must be a list, got {shown(value)}")
    return list(value)


def or_none(kind: Kind[T]) -> Kind[T | None]:
    """Return a reader that also accepts the word none, for `--set run_cap=none`."""
    return lambda value, path: None if value == NONE else kind(value, path)


def observer_names(value: object, path: KeyPath) -> tuple[str, ...]:
    """Return the names or import paths of observers, from a list or a single one."""
    names = [value] if isinstance(value, str) else listed(value, path)
    return tuple(check_observer(name, (*path, index)) for index, name in enumerate(names))


def words(value: object, path: KeyPath) -> tuple[str, ...]:
    """Return the words of a command, with numbers as text."""
    out = []
    for index, item in enumerate(listed(value, path)):
        if isinstance(item, bool) or not isinstance(plain(item, (*path, index)), str | int | float):
            raise InvalidKey((*path, index), f"must be a word of a command, got {shown(item)}")
        out.append(str(item))
    return tuple(out)


def command_or_line(value: object, path: KeyPath) -> str | tuple[str, ...]:
    """Return the words of a command, at least one, or a shell command line."""
    if isinstance(value, str):
        return text(value, path)
    command = words(value, path)
    if not command:
        raise InvalidKey(path, "must hold at least one word, got none", "null for no command")
    return command


def bucket_url(value: object, path: KeyPath) -> str:
    """Return the URL of a folder in an S3 bucket, without a slash at its end."""
    url = text(value, path)
    if re.fullmatch(r"s3://[^/]+(/.*)?", url) is None:
        advice = "a directory on a disk is named with --dir"
        raise InvalidKey(path, f"must be a folder of an S3 bucket, s3://bucket/folder, got {shown(url)}", advice)
    return url.rstrip("/")


def section(
    settings: type[S],
    value: object,
    path: KeyPath,
    hints: Mapping[str, str] | None = None,
    also: Sequence[str] = (),
    example: str = "...",
) -> S:
    """Return the settings of a section. All mistakes are reported at once.

    Args:
        settings: The class of the settings.
        value: A mapping, or in Python the settings themselves.
        path: Path of the section.
        hints: Advice for unknown keys that users write.
        also: Further keys of the section.
        example: Example value for a missing key.
    """
    if isinstance(value, settings):
        return value
    fields = settings_fields(settings)
    if isinstance(value, Mapping):
        word_for = {key: NONE for key, field in fields.items() if field.none_is_word}
        value = {key: word_for.get(key) if item is None else item for key, item in value.items()}
    table = KeyReader(value, path, (*also, *fields), hints)
    required = {key: f"{key}: {example}" for key, field in fields.items() if field.required}
    return table.build(settings, **table.read({key: field.read for key, field in fields.items()}, required))
