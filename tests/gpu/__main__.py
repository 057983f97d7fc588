"""Runs everything that needs a GPU in at most ten minutes, and prints one table: `python -m tests.gpu`.

It installs nothing and needs no network: it runs in the Python that it is called with, and the repository needn't be
installed there. Without a GPU it runs the tests whose device is a stand-in, and the table says so. It ends with 0 if
all went well, with 1 if something failed or couldn't be run, and with 2 where Python has no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.parts import PARTS, STAND_IN_PARTS, Part, Result, deadlines, figures_in, table, went_well, without_gpu
from tests.run_parts import NO_TESTS, count

_ROOT = Path(__file__).parents[2]
_SOURCES = (_ROOT, _ROOT / "comm", _ROOT / "trainers")
_ENDING_SECONDS = 10.0


def main() -> int:
    """Run all parts; return the exit status."""
    try:
        import torch
    except ImportError:
        print(f"make gpu needs a Python with torch (PYTHON=...), but {sys.executable} has none", file=sys.stderr)
        return 2
    cuda, gpus = torch.version.cuda, torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(gpus))
    machine = f"{names}; torch {torch.__version__}, CUDA {cuda}, Python {sys.version.split()[0]}"
    parts = PARTS
    if (why := without_gpu(sys.executable, torch.__version__, cuda, gpus)) is not None:
        machine, parts = why, STAND_IN_PARTS
    print(machine, flush=True)
    began = time.monotonic()
    results = []
    for part, end in zip(parts, deadlines(parts), strict=True):
        print(f"== {part.name}", flush=True)
        results.append(run(part, began + end - time.monotonic()))
    print(f"\n{table(results, machine)}")
    return 0 if went_well(results) else 1


def run(part: Part, seconds: float) -> Result:
    """Run a part, whose output goes to this process's as well.

    Args:
        part: Which.
        seconds: After which all its processes are ended.
    """
    missing = [name for name in part.needs if find_spec(name) is None]
    if missing:
        return Result(part, f"not run: {', '.join(missing)} isn't installed")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpsearch-gpu-") as folder:
        outcomes = Path(folder) / "outcomes"
        outcomes.touch()
        words = [*part.words, *(["-p", "tests.outcomes", "--outcomes", str(outcomes)] if part.tests else [])]
        paths = [*map(str, _SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=None if part.tests else subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output, late = "", False
        try:
            output = process.communicate(timeout=max(seconds, 0.0))[0] or ""
        except subprocess.TimeoutExpired:
            late = True
            output = _end(process)
        except BaseException:
            _end(process)
            raise
        print(output, end="", flush=True)
        ended = "out of time" if late else _ended(process.returncode, part)
        counts = count(outcomes) if part.tests else None
    return Result(part, ended, counts, figures_in(output), time.monotonic() - began)


def _ended(code: int, part: Part) -> str:
    if code == 0 or (part.tests and code == 1):  # tests that failed are counted
        return "ok"
    return "no tests" if part.tests and code == NO_TESTS else f"exit code {code}"


def _end(process: subprocess.Popen[str]) -> str:
    """End a process and what it has started; return what it has written."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_ENDING_SECONDS)[0] or ""
    return ""


if __name__ == "__main__":
    sys.exit(main())
