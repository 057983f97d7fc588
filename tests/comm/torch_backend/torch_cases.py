"""torch's own cases of torch.distributed, on our backend and on Gloo: what passes there must pass here.

    python -m tests.comm.torch_backend.torch_cases [--ranks 3] [PATTERN]

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.forking import Forked

_BY_NAME = "asks for Gloo by name: torch's monitored_barrier takes no other; ours is in hpsearch_comm.torch_backend"

EXCUSED = {
    "test_get_backend": "wants the name that the cases are told; it is hpsearch",
    "test_monitored_barrier_failure_order": _BY_NAME,
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": _BY_NAME,
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_monitored_barrier_wait_all_ranks": _BY_NAME,
}
"""Cases that pass on Gloo and can't on ours, with the reason."""

OF_EIGHT = (
    r"^test_(all_gather|all_gather_coalesced|all_reduce|all_reduce_coalesced|barrier|barrier_timeout|broadcast|gather|"
    r"reduce|scatter)_group(_max|_min|_product|_sum)?$|monitored_barrier_(failure_order|wait_all_ranks)$"
)
"""Of the names of cases that skip themselves where there are fewer than eight ranks, those that need no GPU."""

_CASES = "torch.testing._internal.distributed.distributed_test"

Outcomes = dict[str, tuple[str, str]]
"""What became of each case, `ok`, `skip` or `error`, and what it said."""


@dataclass(frozen=True)
class Comparison:
    """The same cases on Gloo and on our backend.

    Attributes:
        ranks: How many ran each.
        gloo: What became of them on Gloo.
        ours: What became of them on ours.
    """

    ranks: int
    gloo: Outcomes
    ours: Outcomes

    def on_gloo(self) -> list[str]:
        """Name the cases that pass on Gloo."""
        return sorted(name for name, (how, _) in self.gloo.items() if how == "ok")

    def passing(self) -> list[str]:
        """Name the cases that pass on both."""
        return [name for name in self.on_gloo() if self.ours[name][0] == "ok"]

    def excused(self) -> list[str]:
        """Name the cases that pass on Gloo alone, with an excuse."""
        return [name for name in self.on_gloo() if name in EXCUSED and self.ours[name][0] != "ok"]

    def failing(self) -> list[str]:
        """Name the cases that pass on Gloo alone, without an excuse, and what they said."""
        others = {*self.passing(), *self.excused()}
        return [f"{name}: {self.ours[name]}" for name in self.on_gloo() if name not in others]

    def skips(self) -> dict[str, list[str]]:
        """Name the cases that skip themselves on either, by the reason, the most frequent first."""
        reasons: dict[str, list[str]] = {}
        for name in sorted(self.gloo):
            said = [text for how, text in (self.gloo[name], self.ours[name]) if how == "skip"]
            if said:
                reasons.setdefault(said[0], []).append(name)
        return dict(sorted(reasons.items(), key=lambda item: -len(item[1])))

    def lines(self) -> Iterator[str]:
        """Say it for people: counts, then the excuses and the skips with all names."""
        counts = [dict(Counter(how for how, _ in found.values())) for found in (self.gloo, self.ours)]
        cases = f"torch {version('torch')}, {len(self.gloo)} cases, {self.ranks} ranks"
        yield f"{cases}: Gloo {counts[0]}, ours {counts[1]}"
        yield f"{len(self.passing())} pass on both"
        for name in self.excused():
            yield f"excused: {name}: {EXCUSED[name]}"
        for reason, names in self.skips().items():
            yield f"{len(names)} skipped: {reason}"
            yield from (f"    {name}" for name in names)


def outcomes(backend: str, ranks: int, pattern: str = "") -> Outcomes:
    """Run cases in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        env = os.environ | {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/meeting",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # every case skips itself where there are GPUs, but fewer than ranks
        }
        words = ["tests.comm.torch_backend.torch_cases", "--run", backend, "--to", str(result), pattern]
        said = Forked(*words, env=env).communicate()
        if not result.exists():
            raise RuntimeError(said[-3000:])
        return {name: (how, text) for name, (how, text) in json.loads(result.read_text()).items()}


def compare(ranks: int, pattern: str = "") -> Comparison:
    """Run cases on Gloo and on ours."""
    return Comparison(ranks, outcomes("gloo", ranks, pattern), outcomes("hpsearch", ranks, pattern))


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
        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            _check_groups(cases.dist, backend)
            super().run_test(test_name, parent_pipe)

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
            group = make(*given, **options)
            _check_groups(dist, "hpsearch")
            return group

        return made

    dist.init_process_group, dist.new_group = replaced(dist.init_process_group), replaced(dist.new_group)


def _check_groups(dist: Any, backend: str) -> None:
    """See that there are groups, and all of this backend."""
    found = [group.name() for group in dist.distributed_c10d._world.pg_map]
    assert set(found) == {backend}, f"groups of {backend} must be compared, got {found}"


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.comm.torch_backend.torch_cases", description=__doc__)
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
    comparison = compare(arguments.ranks, arguments.pattern)
    for line in comparison.lines():
        print(line)
    sys.exit("\n".join(comparison.failing()))


if __name__ == "__main__":
    _main()
