"""Workers in processes of their own, which run wide segments together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hpsearch_comm
from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trial import Segment, Trial
from hpsearch.worker.gang import RankInfo
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from tests.forked import begin
from tests.hpsearch.support.segments import TRIAL, Listening


class Workers:
    """A pool of workers of one study.

    Args:
        root: The study's directory.
        trainable: What they run; found by the name of its module.
        nodes: A name for the node of each.
        **facts: Of the job.
    """

    def __init__(self, root: Path, trainable: Any, nodes: Sequence[str] = ("a", "a"), **facts: Any) -> None:
        job = replace(
            Job(str(root), "sweep", trainable, (), Objective(Metric("loss")), None, 1, widest=len(nodes)), **facts
        )
        self.nodes = tuple(nodes)
        self._lines: list[Connection] = []
        self.processes = []
        for node in nodes:
            process, line = begin(_serve, job, root, node)
            self._lines.append(line)
            self.processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            line.close()
        for process in self.processes:
            process.communicate()

    def ask(self, worker: int, question: str) -> Any:
        """Ask a worker for its `address`, or what it holds: `descriptors` and `threads`."""
        self._lines[worker].send((question,))
        return self._lines[worker].recv()

    def rank_infos(self, width: int) -> list[RankInfo | None]:
        """RankInfo the first workers in a gang."""
        if width == 1:
            return [None]
        addresses = tuple(self.ask(worker, "address") for worker in range(width))
        secret = hpsearch_comm.new_secret()
        return [RankInfo(rank, addresses, self.nodes[:width], secret) for rank in range(width)]

    def start(self, part: Segment, cut_at: Sequence[int | None] = (), trial: Trial = TRIAL) -> None:
        """Let as many workers as the segment is wide run it.

        Args:
            part: The segment.
            cut_at: By rank: the iteration from which on its channel asks for a cut.
            trial: The trial.
        """
        for rank, rank_info in enumerate(self.rank_infos(part.width)):
            self._lines[rank].send(("run", trial, part, rank_info, cut_at[rank] if cut_at else None))

    def results(self, ranks: Sequence[int]) -> list[tuple[Result, Listening]]:
        """Wait for what these ranks give back, and what their channels heard."""
        return [self._lines[rank].recv() for rank in ranks]

    def run(self, part: Segment, cut_at: Sequence[int | None] = (), trial: Trial = TRIAL) -> list[Result]:
        """Run a segment; return the ranks' results."""
        self.start(part, cut_at, trial)
        return [result for result, _ in self.results(range(part.width))]


def _serve(line: Connection, job: Job, root: Path, node: str) -> None:
    worker = Worker(job, root, node=node, interface="127.0.0.1")
    while True:
        try:
            question, *rest = line.recv()
        except EOFError:
            worker.close()
            return
        if question == "address":
            line.send(worker.address)
        elif question == "descriptors":
            line.send(_descriptors())
        elif question == "threads":
            line.send(sorted(thread.name for thread in threading.enumerate()))
        else:
            trial, part, rank_info, cut_at = rest
            channel = Listening(cut_at)
            line.send((worker.run(trial, part, channel, rank_info), channel))


def _descriptors() -> list[str]:
    """Return the kinds of this process's open descriptors, without the descriptor that lists them."""
    kinds = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds.append(str(path.readlink()).partition(":")[0])
    return sorted(kinds)
