"""A rank is killed at every moment of every way through shared memory, and all others are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comm.leftovers import shared_memory_files

PATHS = (
    "one_shot",
    "staged",
    "in_a_chain",
    "zero_copy",
    "broadcast",
    "allgather",
    "allgather_in_place",
    "alltoall",
    "reduce_scatter",
    "reduce_in_place",
)


@pytest.fixture(scope="module", params=["3", pytest.param("1", marks=pytest.mark.exhaustive)], ids=["some", "all"])
def deaths(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Return the results of the kills, by path; the first of each path is the run in which no rank died."""
    before = shared_memory_files()
    program = subprocess.run(
        [sys.executable, "-m", "tests.comm.collectives.direct_deaths", request.param],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
        check=True,
    )
    assert shared_memory_files() == before
    found: dict[str, list[dict[str, Any]]] = {path: [] for path in PATHS}
    for line in program.stdout.splitlines():
        death = json.loads(line)
        found[death["path"]].append(death)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
def test_a_rank_killed_at_any_moment_is_named_to_all_others(deaths, path):
    whole, *kills = deaths[path]
    assert whole["outcomes"] == ["done"] * 3
    assert whole["moments"] >= 5
    assert len(kills) >= whole["moments"] // 3
    for kill in kills:
        assert kill["outcomes"] == ["PeerLost 1"] * 2, kill
        assert kill["exits"] == [0, -signal.SIGKILL, 0], kill


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
def test_nothing_stays_mapped_when_a_rank_was_killed(deaths, path):
    for kill in deaths[path]:
        assert not any(kill["mapped"]), kill
