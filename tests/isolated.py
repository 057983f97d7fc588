"""Programs run as `python -I` runs them, in milliseconds: forked from one that has imported NumPy and torch alone.

What is written for people without hpsearch is so tested where nothing of hpsearch is in reach. One test of each such
file starts a Python of its own for it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["end_isolated", "run_isolated"]

_SERVE = """
import json, os, runpy, sys, traceback, warnings
import numpy, torch

def next_program():
    for line in sys.stdin:
        program, arguments, folder, strict, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            for place, (file, flags) in enumerate(zip([os.devnull, *files], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
                os.dup2(os.open(file, flags), place)
            sys.argv = [program, *arguments]
            if strict:
                warnings.simplefilter("error")
            return program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()

def ended(program):
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

code = ended(next_program())
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # Python would search all of torch for garbage first
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-I", "-c", _SERVE]
    return subprocess.Popen(command, cwd="/", env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_isolated(
    program: Path, *arguments: object, cwd: Path = Path("/"), strict: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a fresh process.

    Args:
        program: Its file.
        *arguments: What it is called with.
        cwd: Where.
        strict: Whether a warning is an error.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        words = [str(program.resolve()), [*map(str, arguments)], str(cwd.resolve()), strict, out.name, err.name]
        server.stdin.write(json.dumps(words) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess([str(program)], code, out.read(), err.read())


def end_isolated() -> None:
    """End the process that forks, if there is one."""
    if _server.cache_info().currsize:
        _server().communicate()
        _server.cache_clear()
