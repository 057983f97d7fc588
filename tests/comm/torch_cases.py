"""torch's own cases of torch.distributed, on our backend and on Gloo: what passes there must pass here.

    python -m tests.comm.torch_cases [--ranks 3] [PATTERN]

needs the package `expecttest`. The cases are those of `torch.testing._internal.distributed.distributed_test`. Many are
for Gloo by name, though they ask nothing of it that others couldn't have: so the cases are told that they run on Gloo,
and what they make is of our backend. EXCUSED are those that need Gloo itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forking import Forked

__all__ = ["EXCUSED", "compare", "outcomes"]

EXCUSED = {
    "test_get_backend": "wants the name that the cases are told; it is hpsearch",
    "test_monitored_barrier_gloo": "torch's monitored_barrier asks for Gloo's class; ours is in torch_backend",
    "test_monitored_barrier_gloo_rank_0_timeout": "the same",
    "test_monitored_barrier_gloo_subgroup": "the same",
}
"""Cases that pass on Gloo and can't on ours, with the reason."""

_CASES = "torch.testing._internal.distributed.distributed_test"


def outcomes(backend: str, ranks: int, pattern: str = "") -> dict[str, tuple[str, str]]:
    """Run cases in a process of their own; give of each `ok`, `skip` or `error`, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        env = os.environ | {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        words = ["tests.comm.torch_cases", "--run", backend, "--to", str(result), pattern]
        said = Forked(*words, env=env).communicate()
        if not result.exists():
            raise RuntimeError(said[-3000:])
        return {name: (how, text) for name, (how, text) in json.loads(result.read_text()).items()}


def compare(ranks: int, pattern: str = "") -> tuple[list[str], str]:
    """Give what passes on Gloo and, without an excuse, not on ours; and a line for people."""
    gloo, ours = outcomes("gloo", ranks, pattern), outcomes("hpsearch", ranks, pattern)
    passing = sorted(name for name, (how, _) in gloo.items() if how == "ok")
    failing = [f"{name}: {ours[name]}" for name in passing if ours[name][0] != "ok" and name not in EXCUSED]
    counts = [dict(Counter(how for how, _ in found.values())) for found in (gloo, ours)]
    return failing, f"{len(gloo)} cases, {ranks} ranks: Gloo {counts[0]}, ours {counts[1]}"


class _Outcomes(unittest.TestResult):
    """Keeps what became of each case."""

    def __init__(self, keep: Callable[[str, str, str], object]) -> None:
        super().__init__()
        self._keep = keep

    def addSuccess(self, test: Any) -> None:
        self._keep(test._testMethodName, "ok", "")

    def addSkip(self, test: Any, reason: str) -> None:
        self._keep(test._testMethodName, "skip", reason)

    def addError(self, test: Any, err: Any) -> None:
        self._keep(test._testMethodName, "error", str(err[1])[-2000:])

    addFailure = addError


def _run(backend: str, pattern: str, to: Path) -> None:
    import torch.multiprocessing
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup"):
        DistTestCases.backend_feature[feature].add("hpsearch")
    cases: Any = importlib.import_module(_CASES)
    if backend != "gloo":
        importlib.import_module("hpsearch_comm.torch_backend")

        _give_ours_for_gloo(cases.dist)

    class Cases(cases.TestDistBackend, cases.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    found: dict[str, tuple[str, str]] = {}
    result = _Outcomes(lambda name, how, text: found.__setitem__(name, (how, text)))
    for name in unittest.TestLoader().getTestCaseNames(Cases):
        if re.search(pattern, name):
            unittest.TestSuite([Cases(name)]).run(result)
    to.write_text(json.dumps(found))


def _give_ours_for_gloo(dist: Any) -> None:
    """Let those who make a group of Gloo's have one of ours."""

    def replaced(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            if options.get("backend") == "gloo":
                options["backend"] = "hpsearch"
            given = ["hpsearch" if argument == "gloo" else argument for argument in arguments]
            return make(*given, **options)

        return made

    dist.init_process_group, dist.new_group = replaced(dist.init_process_group), replaced(dist.new_group)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.comm.torch_cases", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="of the names of the cases, as a regular expression")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        os.dup2(1, 2)
        warnings.simplefilter("ignore")
        tempfile.tempdir = os.environ["TEMP_DIR"]  # some cases leave what they make
        _run(arguments.run, arguments.pattern, arguments.to)
        return
    failing, line = compare(arguments.ranks, arguments.pattern)
    print(line)
    for name, reason in EXCUSED.items():
        print(f"excused: {name}: {reason}")
    sys.exit("\n".join(failing))


if __name__ == "__main__":
    _main()
