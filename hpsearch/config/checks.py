"""Validation of single values of a sweep, and its errors, which name the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

from hpsearch.errors import SweepError
from hpsearch.trial import Value

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a sweep: `("points_to_try", 0, "lr")`."""

Add = tuple[KeyPath, str]
"""A section and the line to add to it: `(("early_terminate",), "max_iter: 27")`."""

_INT64 = 2**63
_DEEPEST_VALUE = 20


class InvalidKey(SweepError):
    """A key of a sweep is wrong. The reader of the file adds the file and the line.

    Args:
        key: The key.
        problem: The rule, and the value that breaks it.
        advice: How to fix it.
        add: The line to add to a section.
        subject: For an error outside of a sweep: the name of the class that the key belongs to.
    """

    def __init__(self, key: KeyPath, problem: str, advice: str = "", add: Add | None = None, subject: str = "") -> None:
        super().__init__(key, problem, advice, add, subject)  # all arguments, so that it can be pickled
        self.key = key
        self.problem = problem
        self.advice = advice
        self.add = add
        self.subject = subject

    @property
    def mistakes(self) -> tuple[InvalidKey, ...]:
        """A tuple of this error, for the same interface as `InvalidKeys`."""
        return (self,)

    def under(self, prefix: KeyPath) -> InvalidKey:
        """Return the same error with a prefix added to its keys."""
        add = None if self.add is None else (prefix + self.add[0], self.add[1])
        return InvalidKey(prefix + self.key, self.problem, self.advice, add)

    def __str__(self) -> str:
        where = [part for part in (self.subject, key_text(self.key)) if part]
        lines = [": ".join([*where, self.problem])]
        if self.advice:
            lines.append(f"  {self.advice}")
        if self.add is not None:
            section, line = self.add
            lines.append(f"  add {f'under {key_text(section)}' if section else 'at the top level'}:  {line}")
        return "\n".join(lines)


class InvalidKeys(SweepError):
    """Several keys of a sweep are wrong."""

    def __init__(self, mistakes: Sequence[InvalidKey]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))


class Mistakes:
    """Collects errors, so that all of them are reported at once."""

    def __init__(self) -> None:
        self.errors: list[InvalidKey] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect an error that is raised in the context."""
        try:
            yield
        except (InvalidKey, InvalidKeys) as error:
            self.errors += error.mistakes

    def raise_collected(self) -> None:
        """Raise the collected errors, if there are any.

        Raises:
            InvalidKey: One key is wrong.
            InvalidKeys: Several keys are wrong.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise InvalidKeys(self.errors)


@contextmanager
def under(prefix: KeyPath) -> Iterator[None]:
    """Add a prefix to the keys of an error that is raised in the context."""
    try:
        yield
    except InvalidKey as error:
        raise error.under(prefix) from None


def key_text(path: KeyPath) -> str:
    """Return a key path as text: `points_to_try[0].lr`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part or repr(part)}" for part in path).removeprefix(
        "."
    )


def shown(value: object) -> str:
    """Return a value as text for an error, short and on one line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, int) and abs(value) >= _INT64:
        return "an integer beyond 64 bits"  # Python refuses to print thousands of digits
    out = repr(value) if not isinstance(value, list | tuple) else f"a list of {len(value)}"
    return out if len(out) <= 60 else f"{out[:57]}..."


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown word: the known word that is similar or starts with it, or all known words."""
    candidates = list(names)
    lower = [w.lower() for w in candidates]
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    completions = [w for w in lower if w.startswith(name.lower())]
    if not close and len(completions) == 1:
        close = completions
    for candidate in candidates:
        if close and candidate.lower() == close[0]:
            return f"did you mean {candidate}?"
    return f"known here: {', '.join(candidates)}" if candidates else ""


def integer(value: object, key: KeyPath) -> int:
    """Return a 64-bit integer. Booleans and floats are refused."""
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidKey(key, f"must be an integer, got {shown(value)}")
    if not -_INT64 <= value < _INT64:
        raise InvalidKey(key, f"must be an integer of 64 bits, got {shown(value)}")
    return int(value)


def boolean(value: object, key: KeyPath) -> bool:
    """Return a boolean. Numbers and strings are refused."""
    value = _unwrapped(value)
    if not isinstance(value, bool):
        raise InvalidKey(key, f"must be true or false, got {shown(value)}")
    return value


def number(value: object, key: KeyPath) -> float:
    """Return a finite number as a float."""
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidKey(key, f"must be a number, got {shown(value)}")
    try:
        out = float(value)
    except OverflowError:
        out = math.inf
    if not math.isfinite(out):
        raise InvalidKey(key, f"must be a finite number, got {shown(value)}")
    return out


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def text(value: object, key: KeyPath) -> str:
    """Return a non-empty string on one line."""
    if not isinstance(value, str):
        advice = "" if value is None or isinstance(value, Mapping | list) else "put it in quotes"
        raise InvalidKey(key, f"must be a string, got {shown(value)}", advice)
    out = plain(value, key)
    if not out.strip() or not out.isprintable():
        raise InvalidKey(key, f"must be one line of text, got {shown(out)}")
    return str(out)


def at_least(lowest: float, read: Callable[[object, KeyPath], Any], value: object, key: KeyPath) -> Any:
    """Return a value that `read` accepts and that is not below `lowest`."""
    out = read(value, key)
    if out < lowest:
        raise InvalidKey(key, f"must be at least {lowest}, got {out}")
    return out


def one_of(choices: Sequence[str], value: object, key: KeyPath) -> str:
    """Return one of these words."""
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        advice = hint if hint.startswith("did") else ""
        raise InvalidKey(key, f"must be {' or '.join(choices)}, got {shown(value)}", advice)
    return str.__str__(value)


def plain(value: object, key: KeyPath = (), depth: int = 0) -> Value:
    """Return a value with the types of JSON: NumPy scalars are unwrapped, tuples become lists.

    Raises:
        InvalidKey: The value is not a bool, int, float, string, None, or a list or mapping of these.
    """
    value = _unwrapped(value)
    if depth > _DEEPEST_VALUE:
        raise InvalidKey(key, f"must not be nested deeper than {_DEEPEST_VALUE} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return integer(value, key)
    if isinstance(value, float):
        return number(value, key)
    if isinstance(value, str):
        return _plain_string(value, key)
    if isinstance(value, list | tuple):
        return [plain(item, (*key, index), depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_plain_name(name, key): plain(item, (*key, str(name)), depth + 1) for name, item in value.items()}
    raise InvalidKey(
        key,
        f"must be a bool, a number, a string, null, or a list or mapping of these, got {shown(value)} "
        f"({type(value).__name__})",
        "write a name as a string, and look the object up in the trainable",
    )


def _unwrapped(value: object) -> object:
    """Return a NumPy scalar or array as plain Python, without importing NumPy; other values unchanged."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value


def _plain_string(value: str, key: KeyPath) -> str:
    out = str.__str__(value)
    if "\0" in out or any("\ud800" <= letter <= "\udfff" for letter in out):
        raise InvalidKey(key, f"must not hold NUL or lone surrogates, got {shown(out)}")
    return out


def _plain_name(name: object, key: KeyPath) -> str:
    if not isinstance(name, str):
        raise InvalidKey(key, f"must have strings as keys, got {shown(name)}", "put the key in quotes")
    return _plain_string(name, key)
