"""Programs run as `python -I` runs them, in milliseconds: forked from one that has imported torch, and nothing of ours.

What is written for people without hpsearch is so tested where nothing of hpsearch is in reach. One test of each such
file starts a Python of its own for it.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from subprocess import CompletedProcess

from tests.forking import Forked


@functools.cache
def _server() -> Forked:
    return Forked("tests.isolated")


def run_isolated(
    program: Path, *arguments: object, cwd: Path = Path("/"), strict: bool = False
) -> CompletedProcess[str]:
    """Run a program to its end, in a fresh process.

    Args:
        program: Its file.
        *arguments: What it is called with.
        cwd: Where.
        strict: Whether a warning is an error.
    """
    import torch  # not where tests begin, of which some need none

    server = _server()
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        how = [strict, torch.get_num_threads()]  # sums have other last bits on other numbers of threads
        words = [str(program.resolve()), [*map(str, arguments)], str(cwd.resolve()), *how, out.name, err.name]
        server.stdin.write(json.dumps(words) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return CompletedProcess([str(program)], code, out.read(), err.read())


def end_isolated() -> None:
    """End the process that forks, if there is one."""
    if _server.cache_info().currsize:
        _server().communicate()
        _server.cache_clear()


def _forget_hpsearch() -> None:
    """Put what the environment and the working directory add out of reach."""
    root = Path(__file__).parents[1]
    added = {str(root), *os.environ.pop("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [place for place in sys.path if place not in added]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("tests", "hpsearch", "hpsearch_comm", "hpsearch_trainers"):
            del sys.modules[name]


def _next_program() -> str:
    """Fork a process for each requested program; return its path in the child, and "" in the parent at the end."""
    for line in sys.stdin:
        program, arguments, folder, strict, threads, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            flags = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
            for place, (file, flag) in enumerate(zip([os.devnull, *files], flags, strict=True)):
                os.dup2(os.open(file, flag), place)
            sys.argv = [program, *arguments]
            sys.modules["torch"].set_num_threads(threads)
            if strict:
                warnings.simplefilter("error")
            return str(program)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""


def _ended(program: str) -> int:
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve() -> None:
    _forget_hpsearch()
    if program := _next_program():
        code = _ended(program)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python would search all of torch for garbage first


if __name__ == "__main__":
    _serve()
