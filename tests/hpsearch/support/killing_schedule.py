"""A trainer without a loop of its own, so that it is fused, one of which kills its worker in the midst of an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import probe
from tests.hpsearch.support.lane_trainables import Small

probe._timed = lambda run: (run(), 1.0)  # so that lanes are quicker, whatever a busy machine measures

KILLS_AT = 2.4
"""Epochs, in the midst of the third one: what is tried doesn't come as far."""


class Fused(Small):
    """One that kills its worker once, where `folder` holds no note of that yet.

    The note says how many times as much memory as the first parameter has there is where it lies: a lane's is a part of
    what all lanes share.
    """

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make a network whose schedule is the one that kills."""
        parts = super().build({**params, "fault": ""})
        first = next(parts.model.parameters())
        note = Path(params["folder"], "killed") if params["fault"] == "kills once" else None

        def schedule(epoch: float) -> float:
            if note is not None and epoch > KILLS_AT and not note.exists():
                note.write_text(str(first.untyped_storage().nbytes() // first.nbytes))
                os.kill(os.getpid(), signal.SIGKILL)
            return 1.0

        return replace(parts, schedule=schedule)
