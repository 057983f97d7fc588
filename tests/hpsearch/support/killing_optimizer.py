"""A trainer without a loop of its own, so that it is fused, one of which kills its worker in the midst of a batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hpsearch_trainers import Parts
from tests.hpsearch.support.lane_trainables import Small

__all__ = ["Fused"]

STEPS = 12
"""In the third epoch of five batches: copies that are tried take fewer."""


class Killing(torch.optim.SGD):
    """SGD that kills its process at one of its steps, where nobody has done so before; `note` is then written.

    It says how many times as much memory as the first parameter has there is where it lies: a lane's is a part of what
    all lanes share.
    """

    note: Path | None = None
    taken = 0

    def step(self, closure: Any = None) -> Any:
        """Take one, or die."""
        self.taken += 1
        if self.note is not None and self.taken == STEPS and not self.note.exists():
            first = self.param_groups[0]["params"][0]
            self.note.write_text(str(first.untyped_storage().nbytes() // first.nbytes))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


class Fused(Small):
    """One that kills its worker once, where `folder` holds no note of that yet."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make a network whose optimizer is the one that kills."""
        parts = super().build({**params, "fault": ""})
        optimizer = Killing(parts.model.parameters(), params["lr"], momentum=0.9)
        if params["fault"] == "kills once":
            optimizer.note = Path(params["folder"], "killed")
        return replace(parts, optimizer=optimizer)
