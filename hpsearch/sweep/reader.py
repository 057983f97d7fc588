"""Typed reading of plain values: every mistake is an `InvalidKey` that knows its whole path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from hpsearch.config.checks import Add, InvalidKey, InvalidKeys, KeyPath, Mistakes, nearest, plain, shown, text
from hpsearch.config.observer_names import check_observer
from hpsearch.config.settings import NONE, Settings, settings_fields

__all__ = ["Kind", "Table", "command_or_line", "listed", "observer_names", "or_none", "section", "words"]

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound=Settings)

Kind = Callable[[object, KeyPath], T]
"""Takes a value and its path, and gives the value as the type it must be."""


class Table:
    """A mapping with a fixed set of keys, read key by key."""

    def __init__(
        self,
        value: object,
        path: KeyPath,
        keys: Sequence[str],
        hints: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Check the keys; those that aren't known are told of by `build`, with the other mistakes.

        Args:
            value: What stands at `path`.
            path: Where it stands.
            keys: All that may stand inside.
            hints: For keys that don't exist but that people write: what to do.
            renamed: Argument names of what `build` builds to keys, where they differ.
        """
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
                self._misspelt.update(known for known in keys if advice == f"did you mean {known}?")
                self.mistakes.found.append(InvalidKey((*path, key), "isn't a known key", advice))

    def has(self, key: str) -> bool:
        """Say whether a key is given; null is as good as leaving it out."""
        return self.value.get(key) is not None

    def require(self, key: str, example: str | None = None) -> None:
        """Say that a key must be given; `example` is the line to add where it isn't."""
        if key in self.value:
            return
        if key in self._misspelt:
            raise InvalidKeys(())  # told already, of the key that is probably meant to be this one
        add: Add | None = None if example is None else (self.path, example)
        raise InvalidKey((*self.path, key), "is required", add=add)

    def get(self, key: str, kind: Kind[T], example: str | None = None) -> T:
        """Read a key that must be given."""
        self.require(key, example)
        return kind(self.value[key], (*self.path, key))

    def read(self, kinds: Mapping[str, Kind[Any]], required: Mapping[str, str]) -> dict[str, Any]:
        """Read these keys, and go on behind mistakes; those of `required` must be given, each with the line to add."""
        given = {}
        for key, kind in kinds.items():
            with self.mistakes.kept():
                if key in required or self.has(key):
                    given[key] = self.get(key, kind, required.get(key))
        return given

    def build(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a constructor; where it refuses an argument, name the key that the argument came from.

        Raises:
            InvalidKey, InvalidKeys: It does, or mistakes were found before.
        """
        self.mistakes.refuse()
        try:
            return make(*args, **kwargs)
        except InvalidKey as error:
            key = (*(self._renamed.get(str(part), part) for part in error.key[:1]), *error.key[1:])
            raise InvalidKey(key, error.problem, error.advice, error.add).under(self.path) from None


def listed(value: object, path: KeyPath) -> list[Any]:
    """Take a list."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidKey(path, f"must be a list, got {shown(value)}")
    return list(value)


def or_none(kind: Kind[T]) -> Kind[T | None]:
    """Return a reader that takes the word none as well, as `--set run_cap=none` says it."""
    return lambda value, path: None if value == NONE else kind(value, path)


def observer_names(value: object, path: KeyPath) -> tuple[str, ...]:
    """Take a list of observers, by their names and import paths, or one of them alone."""
    given = [value] if isinstance(value, str) else listed(value, path)
    return tuple(check_observer(name, (*path, place)) for place, name in enumerate(given))


def words(value: object, path: KeyPath) -> tuple[str, ...]:
    """Take a list of the words of a command; numbers are written out."""
    out = []
    for place, item in enumerate(listed(value, path)):
        if isinstance(item, bool) or not isinstance(plain(item, (*path, place)), str | int | float):
            raise InvalidKey((*path, place), f"must be a word of a command, got {shown(item)}")
        out.append(str(item))
    return tuple(out)


def command_or_line(value: object, path: KeyPath) -> str | tuple[str, ...]:
    """Take the words of a command, at least one, or a line for the shell."""
    if isinstance(value, str):
        return text(value, path)
    given = words(value, path)
    if not given:
        raise InvalidKey(path, "must hold at least one word, got none", "null for no command")
    return given


def section(
    settings: type[S],
    value: object,
    path: KeyPath,
    hints: Mapping[str, str] | None = None,
    also: Sequence[str] = (),
    example: Callable[[str, Table], str] = lambda key, table: "...",
) -> S:
    """Read a section by the fields of its settings; all mistakes in it are told of at once.

    Args:
        settings: What to build.
        value: A mapping, or in Python the settings themselves.
        path: Where it stands.
        hints: For keys that don't exist but that people write: what to do.
        also: Keys that the section has beside the settings' own.
        example: What could stand at a key that is missing, given the key and what is there.
    """
    if isinstance(value, settings):
        return value
    known = settings_fields(settings)
    if isinstance(value, Mapping):
        word_for = {key: NONE for key, field in known.items() if field.none_is_word}
        value = {key: word_for.get(key) if given is None else given for key, given in value.items()}
    table = Table(value, path, (*also, *known), hints)
    required = {key: f"{key}: {example(key, table)}" for key, field in known.items() if field.required}
    return table.build(settings, **table.read({key: field.read for key, field in known.items()}, required))
