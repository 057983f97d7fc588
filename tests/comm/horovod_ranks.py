"""Ranks of a job of hpsearch_comm.horovod: processes that stay for many calls, each of one function on all ranks."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Self

from tests.comm.meeting import free_port
from tests.comm.process_ranks import SECRET, Outcome

_ROOT = Path(__file__).parents[2]


class HorovodRanks:
    """Calls functions of a module, each on all ranks at once, in processes that were started for that.

    Args:
        size: Number of ranks.
        module: Where the functions are.
        init: Whether the ranks call `hvd.init()` first.
        env: Further variables.
    """

    def __init__(self, size: int, module: str, *, init: bool = True, **env: str) -> None:
        everywhere = os.environ | {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "HPSEARCH_COMM_SECRET": SECRET.hex(),
            "OMP_NUM_THREADS": "1",
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.comm.horovod_ranks", module, "init" if init else ""],
                cwd=_ROOT,
                env=everywhere | {"RANK": str(rank)} | env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def outcomes(self, function: str, *arguments: Any) -> list[Outcome]:
        """Call a function on each rank; give how each call ended, by rank."""
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(json.dumps([function, arguments]) + "\n")
                process.stdin.flush()
            return [self._outcome(process) for process in self._processes]
        except BaseException:  # as at a test's timeout: those of the next test are others
            for process in self._processes:
                process.kill()
            raise

    def call(self, function: str, *arguments: Any) -> list[Any]:
        """Call a function on each rank; give the results by rank, of which none may have failed."""
        outcomes = self.outcomes(function, *arguments)
        assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
        return [outcome.result for outcome in outcomes]

    def end(self) -> list[int]:
        """Let the ranks end; give their exit codes."""
        for process in self._processes:
            assert process.stdin is not None
            if not process.stdin.closed:
                process.stdin.close()
        codes = [process.wait() for process in self._processes]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.close()
        return codes

    @staticmethod
    def _outcome(process: subprocess.Popen[str]) -> Outcome:
        assert process.stdout is not None
        line = process.stdout.readline()
        return Outcome(0, **json.loads(line)) if line else Outcome(process.wait())


def _serve(module: str, init: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what functions print isn't an answer
    functions = importlib.import_module(module)
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
