"""Ours beside a peer's, by method and paired over tasks.

.venv/bin/python -m tests.benchmarks.peers.compare SUITE.yaml RUNS-DIR PEER.jsonl [--data FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from hpsearch.benchmark.report import hits_at, over_tasks, paired
from hpsearch.benchmark.runs import Results, RunCourse, RunKey
from hpsearch.benchmark.suite import load_suite


def peer_courses(path: Path) -> dict[tuple[str, int], dict[RunKey, RunCourse]]:
    """Read a peer's runs, by method and number of workers."""
    found: dict[tuple[str, int], dict[RunKey, RunCourse]] = defaultdict(dict)
    for line in path.read_text("utf-8").splitlines():
        told = json.loads(line)
        key = RunKey(*(told.pop(name) for name in RunKey._fields))
        found[key.method, key.workers][key] = RunCourse(**told)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    suite = load_suite(given.suite, given.data)
    results = Results(given.runs, suite)
    budgets = [f"{budget:g}" for budget in suite.budgets]
    print("| method | workers |", *(f"hits by {budget}: ours | peer | ours - peer |" for budget in budgets))
    print("| --- | --- |", *("--- | --- | --- |" for _ in budgets))
    for (method, workers), theirs in peer_courses(given.peer).items():
        ours = results.of(method, workers)
        cells = [
            f"{over_tasks(ours, hits_at, budget)} | {over_tasks(theirs, hits_at, budget)} | "
            f"{paired(ours, theirs, hits_at, budget)} |"
            for budget in suite.budgets
        ]
        print(f"| {method} ({len(ours)}, {len(theirs)} runs) | {workers} |", *cells)


if __name__ == "__main__":
    main()
