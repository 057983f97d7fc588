"""Ranks of a job of hpsearch_comm.horovod: processes that stay for many calls, each of one function on all ranks."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, Self

from tests.comm.host_devices import take_for_cuda
from tests.comm.meeting import free_port
from tests.comm.process_ranks import SECRET, Outcome
from tests.forking import Forked


class HorovodRanks:
    """Calls functions of a module, each on all ranks at once, in processes that were started for that.

    Args:
        size: Number of ranks.
        module: Where the functions are.
        init: Whether the ranks call `hvd.init()` first.
        cuda: Whether their tensors are taken for those of a CUDA device, and NCCL has a stand-in.
        env: Further variables.
    """

    def __init__(self, size: int, module: str, *, init: bool = True, cuda: bool = False, **env: str) -> None:
        everywhere = os.environ | {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "HPSEARCH_COMM_SECRET": SECRET.hex(),
            "OMP_NUM_THREADS": "1",
        }
        self._processes = [
            Forked(
                "tests.comm.horovod.horovod_ranks",
                module,
                "init" if init else "",
                "cuda" if cuda else "",
                env=everywhere | {"RANK": str(rank)} | env,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def outcomes(self, function: str, *arguments: Any) -> list[Outcome]:
        """Call a function on each rank; return how each call ended, by rank."""
        try:
            for process in self._processes:
                process.stdin.write(json.dumps([function, arguments]) + "\n")
                process.stdin.flush()
            return [self._outcome(process) for process in self._processes]
        except BaseException:  # as at a test's timeout: those of the next test are others
            for process in self._processes:
                process.kill()
            raise

    def call(self, function: str, *arguments: Any) -> list[Any]:
        """Call a function on each rank; return the results by rank, of which none may have failed."""
        outcomes = self.outcomes(function, *arguments)
        assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
        return [outcome.result for outcome in outcomes]

    def end(self) -> list[int]:
        """Let the ranks end; return their exit codes."""
        for process in self._processes:
            if not process.stdin.closed:
                process.stdin.close()
        codes = [process.wait() for process in self._processes]
        for process in self._processes:
            process.stdout.close()
        return codes

    @staticmethod
    def _outcome(process: Forked) -> Outcome:
        line = process.stdout.readline()
        return Outcome(0, **json.loads(line)) if line else Outcome(process.wait())


def _serve(module: str, init: str, cuda: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what functions print isn't an answer
    functions = importlib.import_module(module)
    if cuda:
        take_for_cuda()
    if init:
        import hpsearch_comm.horovod as hvd

        hvd.init()
    for line in sys.stdin:
        function, arguments = json.loads(line)
        try:
            outcome = {"result": getattr(functions, function)(*arguments)}
        except BaseException as error:
            traceback.print_exc()
            outcome = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(outcome), file=answers, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
