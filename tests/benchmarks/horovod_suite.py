"""Horovod's own cases for PyTorch, on `hpsearch_comm.horovod`.

    python -m tests.benchmarks.horovod_suite PATH/TO/horovod/test/parallel/test_torch.py [-k PATTERN] [--together]

The file is that of a checkout of Horovod; it is no part of this project. Each case runs in fresh processes, one for
each rank, that the launcher starts; with --together all of them run in one job, as Horovod runs them, where what one
leaves behind meets the next. What it imports as `horovod.torch` is `hpsearch_comm.horovod`, by an alias package in a
temporary folder. Needs `pip install pytest`.

The cases try every optimizer that torch has. NEWER are those that came after them, and that can't train what they
train; they are hidden from the cases.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

NEWER = {"Muon": "takes no biases"}
"""Optimizers that the cases don't know, by the reason why they can't be tried."""

_ROOT = Path(__file__).parents[2]
_RANK, _SIZE = "HOROVOD_RANK", "HOROVOD_SIZE"

_ALIASES = {
    "horovod/__init__.py": "",
    "horovod/torch/__init__.py": "import sys\nimport hpsearch_comm.horovod as hvd\nsys.modules[__name__] = hvd\n",
    "horovod/runner/__init__.py": "",
    "horovod/runner/util/__init__.py": "",
    "horovod/runner/util/threads.py": (
        "import threading\n\n\n"
        "def in_thread(target, args=(), name=None, daemon=True):\n"
        "    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)\n"
        "    thread.start()\n"
        "    return thread\n"
    ),
    "mock.py": "from unittest.mock import *\n",
}
"""What the cases and their helpers import, by file: `test/utils/common.py` asks for the last two."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case on one rank, or on all."""

    how: str
    """passed, failed or skipped."""
    text: str = ""
    """The reason of a skip; the last lines of what a failed one said."""


def case_names(suite: Path) -> list[str]:
    """Return the test cases of a file, as `Class::test_name`, in its order."""
    return [
        f"{group.name}::{case.name}"
        for group in ast.parse(suite.read_text()).body
        if isinstance(group, ast.ClassDef)
        for case in group.body
        if isinstance(case, ast.FunctionDef) and case.name.startswith("test")
    ]


def run_cases(suite: Path, cases: Sequence[str], ranks: int, seconds: float) -> dict[str, Outcome]:
    """Run cases in one job, of a process for each rank.

    Returns:
        By case, what became of it; it has passed, or been skipped, if it has on all ranks.
    """
    with tempfile.TemporaryDirectory(prefix="horovod-suite-") as folder:
        for name, text in _ALIASES.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        helpers = suite.resolve().parents[1] / "utils"
        path = os.pathsep.join(
            [folder, str(helpers), str(_ROOT), str(_ROOT / "comm"), os.environ.get("PYTHONPATH", "")]
        )
        env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        launcher = [sys.executable, "-m", "hpsearch_comm.launch", "-np", str(ranks)]
        program = ["-m", "tests.benchmarks.horovod_suite", str(suite.resolve()), "--to", folder]
        program += [word for case in cases for word in ("--case", case)]
        code = 0
        try:
            done = subprocess.run(
                launcher + program, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            silent = f"no end within {seconds:.0f} s\n{_tail(_text(error.stdout) + _text(error.stderr))}"
        else:
            code, silent = done.returncode, f"said nothing\n{_tail(done.stdout + done.stderr)}"
        told = [_told(Path(folder), rank) for rank in range(ranks)]
    outcomes = {case: _of_all([of_rank.get(case, Outcome("failed", silent)) for of_rank in told]) for case in cases}
    if code and not any(outcome.how == "failed" for outcome in outcomes.values()):
        outcomes[cases[-1]] = Outcome("failed", f"ended well, and then its processes with {code}\n{silent}")
    return outcomes


def _of_all(outcomes: Sequence[Outcome]) -> Outcome:
    for how in ("failed", "skipped"):
        for rank, outcome in enumerate(outcomes):
            if outcome.how == how:
                return Outcome(how, outcome.text if how == "skipped" else f"rank {rank}: {outcome.text}")
    return outcomes[0]


class _Reports:
    """Writes down what pytest says of the cases, at once: a later one may hang."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = report.nodeid.partition("::")[2]
        if report.failed:
            self._outcomes[case] = Outcome("failed", _tail(report.longreprtext))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._outcomes[case] = Outcome("skipped", reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self._outcomes[case] = Outcome("passed")
        self._file.write_text(json.dumps({case: asdict(outcome) for case, outcome in self._outcomes.items()}))


def _run_rank(suite: Path, cases: Sequence[str], folder: Path) -> int:
    """Run the cases in this process, which is one rank; write what becomes of them."""
    os.environ[_RANK], os.environ[_SIZE] = os.environ["RANK"], os.environ["WORLD_SIZE"]
    for name in NEWER:
        if hasattr(torch.optim, name):
            getattr(torch.optim, name).__module__ = "newer than the cases"
    reports = _Reports(_told_file(folder, int(os.environ[_RANK])))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", os.devnull, "--rootdir", str(suite.parent)]
    return int(pytest.main([*options, *(f"{suite}::{case}" for case in cases)], plugins=[reports]))


def _told_file(folder: Path, rank: int) -> Path:
    return folder / f"outcomes.{rank}.json"


def _told(folder: Path, rank: int) -> dict[str, Outcome]:
    file = _told_file(folder, rank)
    if not file.exists():
        return {}
    return {case: Outcome(**outcome) for case, outcome in json.loads(file.read_text()).items()}


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def _text(written: Any) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else written or ""


def _table(outcomes: dict[str, Outcome], seconds: float) -> Iterator[str]:
    counts = Counter(outcome.how for outcome in outcomes.values())
    of_each = ", ".join(f"{counts[how]} {how}" for how in ("passed", "failed", "skipped"))
    yield f"{len(outcomes)} cases: {of_each} in {seconds:.0f} s, with torch {torch.__version__}"
    reasons = Counter(outcome.text for outcome in outcomes.values() if outcome.how == "skipped")
    for reason, count in reasons.most_common():
        yield f"  skipped, {count}: {reason}"
    for name, reason in NEWER.items():
        if hasattr(torch.optim, name):
            yield f"  hidden from the cases: torch.optim.{name}, which {reason}"


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.horovod_suite", description=__doc__)
    parser.add_argument("suite", type=Path, help="Horovod's test/parallel/test_torch.py")
    parser.add_argument("-k", dest="pattern", default="", help="of the names of the cases, as a regular expression")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--together", action="store_true", help="run the cases in one job")
    parser.add_argument("--timeout", type=float, help="seconds for a job (default: 300, or 1800 with --together)")
    parser.add_argument("--case", action="append", dest="cases", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cases:
        sys.exit(_run_rank(arguments.suite, arguments.cases, arguments.to))
    cases = [case for case in case_names(arguments.suite) if re.search(arguments.pattern, case)]
    jobs = [cases] if arguments.together and cases else [[case] for case in cases]
    seconds = arguments.timeout or (1800.0 if arguments.together else 300.0)
    outcomes: dict[str, Outcome] = {}
    begin = time.monotonic()
    for job in jobs:
        ended = run_cases(arguments.suite, job, arguments.ranks, seconds)
        for case, outcome in ended.items():
            print(f"{outcome.how:8} {case}{': ' if outcome.text else ''}{outcome.text}", flush=True)
        outcomes |= ended
    print(*_table(outcomes, time.monotonic() - begin), sep="\n")
    sys.exit(any(outcome.how == "failed" for outcome in outcomes.values()))


if __name__ == "__main__":
    _main()
