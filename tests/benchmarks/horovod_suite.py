"""Horovod's own cases for PyTorch, on `hpsearch_comm.horovod`.

    python -m tests.benchmarks.horovod_suite PATH/TO/horovod/test/parallel/test_torch.py [-k PATTERN]

The file is that of a checkout of Horovod; it is no part of this project. Each case runs in fresh processes, one for
each rank, that the launcher starts. What it imports as `horovod.torch` is `hpsearch_comm.horovod`, by an alias package
in a temporary folder. Needs `pip install pytest`.

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = ["Outcome", "case_names", "run_case"]

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
    """Give the cases of a file, as `Class::test_name`, in its order."""
    return [
        f"{group.name}::{case.name}"
        for group in ast.parse(suite.read_text()).body
        if isinstance(group, ast.ClassDef)
        for case in group.body
        if isinstance(case, ast.FunctionDef) and case.name.startswith("test")
    ]


def run_case(suite: Path, case: str, ranks: int, seconds: float) -> Outcome:
    """Run a case in a process for each rank; it has passed, or been skipped, if it has on all of them."""
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
        program = ["-m", "tests.benchmarks.horovod_suite", str(suite.resolve()), "--case", case, "--to", folder]
        try:
            done = subprocess.run(
                launcher + program, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            said = _tail(_text(error.stdout) + _text(error.stderr))
            return Outcome("failed", f"no end within {seconds:.0f} s\n{said}")
        outcomes = []
        for rank in range(ranks):
            file = Path(folder, f"outcome.{rank}.json")
            if not file.exists():
                return Outcome("failed", f"rank {rank} said nothing\n{_tail(done.stdout + done.stderr)}")
            outcomes.append(Outcome(**json.loads(file.read_text())))
    for how in ("failed", "skipped"):
        for rank, outcome in enumerate(outcomes):
            if outcome.how == how:
                return Outcome(how, outcome.text if how == "skipped" else f"rank {rank}: {outcome.text}")
    if done.returncode:
        return Outcome("failed", f"passed, and then its processes ended with {done.returncode}\n{_tail(done.stderr)}")
    return Outcome("passed")


class _Reports:
    """Keeps what pytest says of the case."""

    def __init__(self) -> None:
        self.outcome = Outcome("failed", "pytest found no such case")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcome = Outcome("failed", _tail(report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome = Outcome("failed", _tail(report.longreprtext))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.outcome = Outcome("skipped", reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self.outcome = Outcome("passed")


def _run_rank(suite: Path, case: str, folder: Path) -> int:
    """Run the case in this process, which is one rank; write what became of it."""
    os.environ[_RANK], os.environ[_SIZE] = os.environ["RANK"], os.environ["WORLD_SIZE"]
    for name in NEWER:
        if hasattr(torch.optim, name):
            getattr(torch.optim, name).__module__ = "newer than the cases"
    reports = _Reports()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", os.devnull, "--rootdir", str(suite.parent)]
    code = pytest.main([*options, f"{suite}::{case}"], plugins=[reports])
    text = json.dumps({"how": reports.outcome.how, "text": reports.outcome.text})
    (folder / f"outcome.{os.environ[_RANK]}.json").write_text(text)
    return int(code)


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def _text(written: Any) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else written or ""


def _table(outcomes: dict[str, Outcome]) -> Iterator[str]:
    counts = Counter(outcome.how for outcome in outcomes.values())
    yield f"{len(outcomes)} cases: " + ", ".join(f"{counts[how]} {how}" for how in ("passed", "failed", "skipped"))
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
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a case (default: 300)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        sys.exit(_run_rank(arguments.suite, arguments.case, arguments.to))
    outcomes: dict[str, Outcome] = {}
    for case in case_names(arguments.suite):
        if re.search(arguments.pattern, case):
            begin = time.monotonic()
            outcomes[case] = outcome = run_case(arguments.suite, case, arguments.ranks, arguments.timeout)
            said = f": {outcome.text}" if outcome.text else ""
            print(f"{outcome.how:8}{time.monotonic() - begin:6.1f} s  {case}{said}", flush=True)
    print(*_table(outcomes), sep="\n")
    sys.exit(any(outcome.how == "failed" for outcome in outcomes.values()))


if __name__ == "__main__":
    _main()
