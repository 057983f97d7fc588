"""Secrets that a command line may hold: known by the names of their keys, and masked where the line is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MASK", "looks_secret", "mask_words"]

MASK = "***"

_SECRET = re.compile(
    r"secret|passw(or)?d|passphrase|(^|_)pwd$|credential|(^|_)token$|(api|access|private|auth|signing|encryption)_?key"
)
"""Within a name in lower case, with underscores between its words. `max_tokens` is none."""

_PAIR = re.compile(r"(?P<key>(?:--set=)?-{0,2}[\w.-]+)=(?P<value>.*)", re.DOTALL)

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")

_KEY_INSIDE = re.compile(r"""["']?([\w.-]+)["']?\s*:""")
"""A key of a mapping in YAML, such as `{api_key: {value: x}}`."""


def looks_secret(key: str) -> bool:
    """Return whether a key, or a part of a dotted one, is named as secrets are: `optimizer.api_key`, `--auth-token`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    return any(_SECRET.search(part) for part in words.split("."))


def mask_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with the values of keys that look like secrets masked.

    Args:
        words: As a shell passes them; `KEY=VALUE`, `--key=VALUE`, `--key VALUE` and `--set KEY=VALUE` are known.
    """
    masked: list[str] = []
    before = ""
    for word in words:
        pair = _PAIR.fullmatch(word)
        if looks_secret(before) and not word.startswith("-"):
            masked.append(MASK)
        elif pair is not None and (looks_secret(pair["key"]) or _holds_secret(pair["value"])):
            masked.append(f"{pair['key']}={MASK}")
        else:
            masked.append(word)
        before = word if _OPTION.fullmatch(word) else ""
    return masked


def _holds_secret(value: str) -> bool:
    return any(looks_secret(key) for key in _KEY_INSIDE.findall(value))
