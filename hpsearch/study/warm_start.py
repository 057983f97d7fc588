"""A study's warm start: trials of other searches, copied into the study's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import JournalError
from hpsearch.searchers import Past
from hpsearch.trial import JointScore, Score

_KEY = "warm_start"
"""Key in the study's record."""


@dataclass(frozen=True)
class WarmStart:
    """Trials of other searches, as they were when the study was created. Their sources may no longer exist."""

    sources: tuple[str, ...] = ()
    """Identities of the sources that they were read from."""
    told: tuple[str, ...] = ()
    """One message per source: how many trials were used, and why the others weren't."""
    past: tuple[Past, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the warm start as part of a study's record; `stored_warm_start` reads it."""
        past = [
            {
                "params": dict(trial.params),
                "values": [[at, _to_json(score)] for at, score in trial.values.items()],
                "until": trial.until,
            }
            for trial in self.past
        ]
        return {_KEY: {"sources": list(self.sources), "told": list(self.told), "past": past}}


def stored_warm_start(record: Mapping[str, Any]) -> WarmStart:
    """Return a study's warm start; it is empty if there was none.

    Raises:
        JournalError: This version can't read it.
    """
    if _KEY not in record:
        return WarmStart()
    try:
        stored = record[_KEY]
        past = tuple(
            Past(trial["params"], {int(at): _from_json(score) for at, score in trial["values"]}, trial["until"])
            for trial in stored["past"]
        )
        return WarmStart(tuple(stored["sources"]), tuple(stored["told"]), past)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise JournalError(
            f"the study began with results of others that this version of hpsearch can't read; {problem}. Go on with "
            "the version that made it"
        ) from error


def _to_json(score: Score) -> Any:
    if not isinstance(score, JointScore):
        return score
    return {"values": list(score.values), "excesses": list(score.excesses)}


def _from_json(score: Any) -> Score:
    if not isinstance(score, Mapping):
        return float(score)
    return JointScore(tuple(map(float, score["values"])), tuple(map(float, score["excesses"])))
