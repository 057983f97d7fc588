"""A process that has imported torch and little else, and forks for each call: a fresh process in milliseconds.

The test process itself can't be forked safely: other tests may have started threads in it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from tests.forking import Forked


class ForkServer:
    """Calls functions of a module, each in a process of its own.

    Args:
        module: Where the functions are; imported once.
    """

    def __init__(self, module: str) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = Forked("tests.hpsearch.support.fork_server", module, env=env)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def call(self, function: str, *arguments: Any) -> int:
        """Call a function; return how its process ended: 0, 1 where it raised, or minus a signal's number."""
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve(module: str) -> None:
    functions = importlib.import_module(module)
    for line in sys.stdin:
        function, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                getattr(functions, function)(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
