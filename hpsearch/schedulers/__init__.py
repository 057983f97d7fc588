"""Schedulers: they decide how many iterations each trial runs.

To add a scheduler, write a file with its settings and the scheduler, and add a line to `KNOWN` below. Sweep files, the
Python API, `plan`, `--set` and the test of the docs read that line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.config.import_paths import import_object
from hpsearch.decision import Decision
from hpsearch.errors import SweepError
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler
from hpsearch.schedulers.early_terminate import Absent, EarlyTerminate, SchedulerCapabilities
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pasha import PASHA
from hpsearch.schedulers.pbt import PBT

__all__ = [
    "KNOWN",
    "Decision",
    "NewTrial",
    "Outcome",
    "Run",
    "Scheduler",
    "SchedulerCapabilities",
    "early_terminate_from_json",
    "settings_named",
]

KNOWN: Mapping[str, type[EarlyTerminate]] = {
    cls.kind: cls for cls in (Hyperband, SuccessiveHalving, ASHA, PASHA, MedianStopping, Bands, PBT)
}
"""`type` of `early_terminate` to its settings."""

_BEFORE_KEYS: Mapping[str, Mapping[str, Any]] = {cls.kind: {"rungs": "paper"} for cls in (Hyperband, SuccessiveHalving)}
"""Defaults for settings that earlier versions stored without these keys."""


def settings_named(kind: str) -> type[EarlyTerminate]:
    """Return the settings of a `type`: a known name, or the import path `package.module:Class` of a custom scheduler.

    Raises:
        InvalidKey: There is no scheduler of this name.
    """
    if kind in KNOWN:
        return KNOWN[kind]
    if ":" not in kind:
        advice = f"{nearest(kind, KNOWN)}; one of your own is named as package.module:Class"
        raise InvalidKey(("type",), f"must be a known scheduler, got {kind!r}", advice)
    try:
        settings = import_object(kind, "early_terminate.type", SweepError, [str(Path.cwd())])
    except SweepError as error:
        raise InvalidKey(("type",), str(error)) from error
    if not (isinstance(settings, type) and issubclass(settings, EarlyTerminate)):
        problem = f"must be a class of settings derived from hpsearch.EarlyTerminate, but {kind} is {settings!r}"
        raise InvalidKey(("type",), problem)
    return settings


def early_terminate_from_json(stored: Mapping[str, Any]) -> EarlyTerminate:
    """Return the settings that `to_json` stored; `Absent` for a custom scheduler that can't be imported."""
    fields = {**_BEFORE_KEYS.get(stored["type"], {}), **stored}
    kind = fields.pop("type")
    try:
        return settings_named(kind)(**fields)
    except (SweepError, TypeError) as error:
        if kind in KNOWN:
            raise
        return Absent(fields["max_iter"], json.dumps(dict(stored)), str(error))
