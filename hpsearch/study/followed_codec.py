"""What followed from an event to and from JSON, for the journal; of most events nothing did, which is written as ''."""

from __future__ import annotations

import json

from hpsearch.decision import Decision, Followed, Plan

__all__ = ["decode_followed", "encode_followed"]

_dump = json.JSONEncoder(separators=(",", ":")).encode
_NOTHING = Followed()


def encode_followed(followed: Followed) -> str:
    """Give what followed as text."""
    given: dict[str, object] = {}
    if followed.decisions:
        given["decisions"] = [(made.trial, made.action, made.reason) for made in followed.decisions]
    if followed.plan is not None:
        given["plan"] = (followed.plan.total, list(followed.plan.brackets.items()))
    return _dump(given) if given else ""


def decode_followed(text: str) -> Followed:
    """Read it back.

    Raises:
        KeyError, TypeError, ValueError: It isn't what `encode_followed` gave.
    """
    if not text:
        return _NOTHING
    given = json.loads(text)
    decisions = tuple([Decision(*row) for row in given.get("decisions", ())])
    if "plan" not in given:
        return Followed(decisions)
    total, brackets = given["plan"]
    plans = {bracket: tuple([(until, size) for until, size in rungs]) for bracket, rungs in brackets}
    return Followed(decisions, Plan(None if total is None else (total[0], total[1]), plans))
