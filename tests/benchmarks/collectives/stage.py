"""What every rank of a benchmark has at hand."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.collectives.contenders import Gloo
from tests.benchmarks.collectives.meeting import Blackboard, Meeting
from tests.benchmarks.collectives.namespaces import INTERFACE
from tests.benchmarks.collectives.plan import Plan

if TYPE_CHECKING:
    from hpsearch_comm.group import Group


@dataclass(frozen=True, slots=True)
class Stage:
    """The plan, and where the ranks meet."""

    plan: Plan
    rank: int
    directory: Path
    meeting: Meeting
    exits: ExitStack
    """Closes what was opened, in reverse order, on every rank."""

    def group(self, name: str, **options: Any) -> Group:
        """Make a group of all ranks, as the plan wants it unless the options say otherwise."""
        from hpsearch_comm.group import Group

        plan = self.plan
        given: dict[str, Any] = {
            "rendezvous": Blackboard(self.directory, name),
            "secret": bytes.fromhex((self.directory / "secret").read_text()),
            "name": name,
            "algorithm": plan.algorithm,
            "transport": plan.transport,
            "interface": INTERFACE if plan.namespaces else "lo",
        }
        return self.exits.enter_context(Group(self.rank, plan.ranks, **(given | options)))

    def gloo(self, most: int = 0) -> Gloo:
        """Make torch's group of all ranks, for tensors of up to that many elements."""
        gloo = Gloo(self.directory, self.rank, self.plan.ranks, most)
        self.exits.callback(gloo.close)
        return gloo

    def torchs_group(self) -> Any:
        """Make torch's process group of all ranks over a group of ours; `gloo` must have been called."""
        import torch.distributed as dist

        importlib.import_module("hpsearch_comm.torch_backend")

        plan = self.plan
        os.environ |= {
            "HPSEARCH_COMM_SECRET": (self.directory / "secret").read_text(),
            "HPSEARCH_COMM_ALGORITHM": plan.algorithm,
            "HPSEARCH_COMM_TRANSPORT": plan.transport,
            "HPSEARCH_COMM_INTERFACE": INTERFACE if plan.namespaces else "lo",
        }
        return dist.new_group(backend="hpsearch")

    def say(self, text: str) -> None:
        """Report progress, from one rank."""
        if self.rank == 0:
            print(text, file=sys.stdout, flush=True)  # the launcher leads it to its own stderr
