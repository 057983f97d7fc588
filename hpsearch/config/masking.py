"""Masking of secrets in recorded command lines. Secrets are recognized by the names of their keys."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"

_SECRET = re.compile(
    r"secret|passw(or)?d|passphrase|(^|_)pwd?$|credential|(^|_)(token|bearer)$|_key$"
    r"|(api|access|private|auth|signing|encryption)_?key"
)
"""Matches within a name in snake case. `max_tokens` and `keys` do not match."""

_PAIR = re.compile(r"(?P<key>(?:--set=)?-{0,2}[\w.-]+)=(?P<value>.*)", re.DOTALL)

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")

_KEY_INSIDE = re.compile(r"""["']?([\w.-]+)["']?\s*:""")
"""A key of a mapping in YAML, such as `{api_key: {value: x}}`."""


def looks_secret(key: str) -> bool:
    """Return whether a part of a dotted key is the name of a secret: `optimizer.api_key`, `--auth-token`."""
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    return any(_SECRET.search(part) for part in snake_case.split("."))


def mask_words(argv: Iterable[str]) -> list[str]:
    """Return the words of a command line with the values of secret keys masked.

    Args:
        argv: Words as a shell passes them: `KEY=VALUE`, `--key=VALUE`, `--key VALUE` and `--set KEY=VALUE` are masked.
    """
    masked: list[str] = []
    option = ""
    for word in argv:
        pair = _PAIR.fullmatch(word)
        if looks_secret(option) and not word.startswith("-"):
            masked.append(MASK)
        elif pair is not None and (looks_secret(pair["key"]) or _contains_secret(pair["value"])):
            masked.append(f"{pair['key']}={MASK}")
        else:
            masked.append(word)
        option = word if _OPTION.fullmatch(word) else ""
    return masked


def _contains_secret(value: str) -> bool:
    return any(looks_secret(key) for key in _KEY_INSIDE.findall(value))
