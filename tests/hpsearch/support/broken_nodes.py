"""A trainable for clusters with a node that isn't in order."""

from __future__ import annotations

import os
import time
from typing import Any

import hpsearch
from hpsearch.backends.ray import worker

BROKEN = "HPSEARCH_TESTS_BROKEN"
"""In the environment of such a node: what its workers don't come to the end of, `start` or `run`."""

NOT_IN_ORDER = "this node isn't in order"


def train(trial: hpsearch.RunningTrial) -> None:
    """Train for longer than any test takes."""
    for _ in trial.iterations():
        time.sleep(0.05)
        trial.report({"value": 1.0})


def _fail(*_: Any) -> None:
    raise PermissionError(NOT_IN_ORDER)


match os.environ.get(BROKEN):
    case "start":
        worker.Hello = _fail  # type: ignore[assignment, attr-defined]
    case "run":
        worker._Channel = _fail  # type: ignore[assignment, misc]
