"""Wide segments on a real Ray cluster: several workers that run one trial together."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hpsearch
from hpsearch.backends import gangs, replacing
from hpsearch.backends.ray import worker_pool
from hpsearch.backends.ray.backend import RayBackend
from hpsearch.events import Lost
from hpsearch.sweep.parts import Resources
from hpsearch.task import Notice, Result
from tests.hpsearch.support.conditions import gone, limits, wait_until
from tests.hpsearch.support.driver import ROOT, Driver, is_timeout

pytestmark = pytest.mark.ray

X = 0.5


def ended(outcome: Any) -> dict[str, float]:
    """Return the last metrics of a task that ended normally."""
    assert isinstance(outcome, Result), outcome
    assert outcome.failure is None, outcome.failure
    return dict(outcome.reports[-1].metrics)


@pytest.fixture
def pair(ray_cluster, tmp_path, monkeypatch) -> Iterator[Driver]:
    """Two workers on one node, with as much time to stop together as a busy machine needs."""
    monkeypatch.setattr(gangs, "GRACE_SECONDS", 300.0)
    driver = Driver(RayBackend(Resources(workers=2, workers_per_trial=2)), tmp_path / "study", "together", widest=2)
    driver.wait_for(lambda: driver.backend.workers().ready == 2)
    yield driver
    driver.backend.close()


def test_a_wide_task_is_run_by_several_workers_together_and_has_one_outcome(pair):
    pair.start(0, {"x": X}, end=3, width=2)
    assert pair.backend.capacity() == 0
    outcome = pair.outcome(0)
    known = ended(outcome)
    assert [report.metrics["value"] for report in outcome.reports] == [2 * X, 4 * X, 6 * X]
    assert (known["size"], known["hosts"]) == (2, 1)
    assert known["pid0"] != known["pid1"]
    assert pair.backend.capacity() == 2


def test_a_trial_goes_on_wider_and_narrower_and_rank_0_stays_with_its_worker(pair):
    pair.start(0, {"x": X}, end=2)
    narrow = pair.outcome(0)
    pair.start(0, {"x": X}, end=4, width=2, after=narrow)
    wide = pair.outcome(0, attempt=2)
    pair.start(0, {"x": X}, end=5, after=wide)
    last = ended(pair.outcome(0, attempt=3))
    assert last["value"] == 2 * X + 4 * X + X
    assert ended(narrow)["pid0"] == ended(wide)["pid0"] == last["pid0"]


def test_each_rank_has_an_output_of_its_own(pair, tmp_path):
    pair.start(7, {"x": X}, end=2, width=2)
    pair.outcome(7)
    attempt = tmp_path / "study" / "trials" / "00007" / "1"
    assert (attempt / "output.log").read_text() == "rank 0\nrank 0\n"
    assert (attempt / "rank-1" / "output.log").read_text() == "rank 1\nrank 1\n"


def test_a_cut_ends_all_ranks_at_one_report_with_a_checkpoint(pair, tmp_path):
    pair.start(0, {"x": X, "pause": 0.02}, end=100_000, width=2)
    pair.metrics(0)
    pair.backend.cut(0, 1)
    outcome = pair.outcome(0)
    ended(outcome)
    assert outcome.cut
    assert 0 < outcome.iteration < 100_000
    assert (tmp_path / "study" / outcome.checkpoint / "state.pt").is_file()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_a_rank_that_is_killed_ends_the_attempt_and_leaves_the_other_worker_warm(pair, rank):
    pair.start(0, {"x": X, "pause": 0.02}, end=100_000, width=2)
    known = pair.metrics(0)
    os.kill(int(known[f"pid{rank}"]), signal.SIGKILL)
    outcome = pair.outcome(0)
    assert isinstance(outcome, Lost)
    assert outcome.counts_against_trial
    assert f"rank {rank} of 2" in outcome.reason
    pair.start(1, {"x": X})
    assert ended(pair.outcome(1))["pid0"] == known[f"pid{1 - rank}"]
    pair.start(2, {"x": X}, width=2)
    assert ended(pair.outcome(2))["size"] == 2


@pytest.mark.exhaustive
def test_a_rank_that_raises_fails_the_attempt_and_leaves_the_other_worker_warm(pair, monkeypatch):
    pair.start(0, {"x": X}, width=2)
    known = ended(pair.outcome(0))
    pair.start(1, {"x": X, "raises": 1}, end=3, width=2)
    outcome = pair.outcome(1)
    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", 0.0)  # the new worker takes longer to start
    failure = outcome.failure
    assert (failure.kind, failure.message) == ("raised", "rank 1 of 2: ValueError: this rank can't go on")
    assert outcome.checkpoint is None
    assert outcome.iteration == 1
    pair.start(2, {"x": X}, width=2)
    after = ended(pair.outcome(2))
    assert len({known["pid0"], known["pid1"]} & {after["pid0"], after["pid1"]}) == 1


def test_a_wide_task_over_its_timeout_is_killed_on_all_ranks(pair):
    for number, seconds in enumerate(limits(2.0)):
        pair.start(number, {"x": X, "pause": 0.02}, end=100_000, width=2, timeout=seconds)
        outcome = pair.outcome(number)
        if pair.reports(number):
            break
    known = pair.metrics(number)
    assert is_timeout(outcome)
    assert outcome.failure.kind == "timeout"
    wait_until(lambda: gone(known["pid0"]) and gone(known["pid1"]))


@pytest.mark.exhaustive
def test_a_rank_that_stays_when_rank_0_is_done_is_killed(pair, monkeypatch):
    monkeypatch.setattr(gangs, "GRACE_SECONDS", 0.5)
    pair.start(0, {"x": X, "stays": 1}, end=2, width=2)
    known = ended(pair.outcome(0))
    assert known["value"] == 4 * X
    wait_until(lambda: gone(known["pid1"]))
    assert not gone(known["pid0"])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_gangs_stay_on_a_node_where_they_can_and_survive_the_loss_of_one(ray_cluster, tmp_path, monkeypatch, add_node):
    monkeypatch.setattr(gangs, "GRACE_SECONDS", 2.0)  # Ray takes longer to miss a node
    node = add_node(2)
    driver = Driver(RayBackend(Resources(workers=4, workers_per_trial=2)), tmp_path / "study", "together", widest=4)
    driver.wait_for(lambda: driver.backend.capacity() == 4)
    driver.start(0, {"x": X, "pause": 0.1}, end=5, width=2)
    driver.start(1, {"x": X, "pause": 0.1}, end=5, width=2)
    first, second = ended(driver.outcome(0)), ended(driver.outcome(1))
    assert (first["hosts"], second["hosts"]) == (1, 1)
    assert {first["pid0"], first["pid1"]}.isdisjoint({second["pid0"], second["pid1"]})
    driver.start(2, {"x": X}, end=2, width=4)
    wide = ended(driver.outcome(2))
    assert (wide["value"], wide["size"], wide["hosts"]) == (8 * X, 4, 2)
    assert {wide["pid0"], wide["pid1"]} in ({first["pid0"], first["pid1"]}, {second["pid0"], second["pid1"]})
    driver.start(3, {"x": X, "pause": 0.1}, end=100_000, width=4)
    pids = {pid for name, pid in driver.metrics(3).items() if name.startswith("pid")}
    node.lose()
    assert isinstance(driver.outcome(3), Lost)
    left = {pid for pid in pids if not gone(pid)}
    assert len(left) == 2
    driver.start(4, {"x": X}, width=2)
    last = ended(driver.outcome(4))
    assert {last["pid0"], last["pid1"]} == left
    driver.backend.close(kill=True)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_trial_that_is_too_wide_for_the_nodes_that_are_left_waits_for_others_and_says_so(
    ray_cluster, tmp_path, add_node
):
    node = add_node(2)
    driver = Driver(RayBackend(Resources(workers_per_trial=3)), tmp_path / "study", "together", widest=3)
    driver.wait_for(lambda: driver.backend.capacity() == 4)
    node.lose()
    driver.start(0, {"x": X}, width=3, at_once=True)
    assert isinstance(driver.outcome(0), Lost)
    driver.wait_for(lambda: driver.backend.capacity() == 2)
    driver.start(0, {"x": X}, width=3, attempt=2, at_once=True)
    outcome = driver.outcome(0, attempt=2)
    assert isinstance(outcome, Lost)
    assert not outcome.counts_against_trial
    told = (
        r"waiting for nodes: a trial needs 3 workers at once, each of 1 CPU; the nodes hold 2 \([\d.]+: 2 CPUs\) = 2 of"
    )
    driver.wait_for(lambda: any(isinstance(m, Notice) and re.match(told, m.text) for m in driver.messages))
    assert driver.backend.capacity() <= 2
    add_node(1)
    driver.start(0, {"x": X}, width=3, attempt=3)
    assert ended(driver.outcome(0, attempt=3))["size"] == 3
    driver.backend.close(kill=True)


def test_a_trial_that_the_cluster_can_never_hold_is_one_clear_error(ray_cluster, tmp_path):
    arithmetic = r"needs 5 workers at once, each of 1 CPU; the nodes hold 2 \([\d.]+: 2 CPUs\) = 2 of them"
    with pytest.raises(hpsearch.BackendError, match=arithmetic):
        Driver(RayBackend(Resources(workers_per_trial=5)), tmp_path / "study", "together", widest=5)


@pytest.mark.exhaustive
def test_a_gang_with_a_worker_that_does_not_see_the_study_goes_on_from_a_checkpoint(ray_cluster, tmp_path, blind_node):
    study = tmp_path / "study"
    driver = Driver(RayBackend(Resources(workers=3, workers_per_trial=3)), study, "together", widest=3)
    driver.start(0, {"x": X}, end=2, width=3)
    first = driver.outcome(0)
    assert ended(first)["hosts"] == 2
    driver.start(0, {"x": X}, end=4, width=3, after=first)
    second = driver.outcome(0, attempt=2)
    assert ended(second)["value"] == 12 * X
    assert (study / second.checkpoint / "state.pt").is_file()
    logs = [study / "trials" / "00000" / "2" / folder / "output.log" for folder in ("", "rank-1", "rank-2")]
    assert [log.read_text() for log in logs] == [f"rank {rank}\n" * 2 for rank in range(3)]
    driver.backend.close(kill=True)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_idle_workers_are_given_back_and_had_again_for_a_wide_task(ray_cluster, tmp_path, monkeypatch):
    import ray

    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(replacing, "FIRST_SECONDS", 1.0)
    driver = Driver(RayBackend(Resources(workers=2)), tmp_path / "study", "together", widest=2)
    driver.wait_for(lambda: driver.backend.workers().ready == 0 and driver.backend.capacity() == 2)
    wait_until(lambda: ray.available_resources().get("CPU") == 2)

    class Other:
        def here(self) -> bool:
            return True

    other = ray.remote(Other).options(num_cpus=1).remote()
    assert ray.get(other.here.remote())
    driver.start(0, {"x": X}, width=2)
    assert driver.backend.capacity() == 0
    outcome = driver.outcome(0)  # it may begin with less, rather than wait for the other's place
    assert isinstance(outcome, Lost)
    assert not outcome.counts_against_trial
    driver.start(1, {"x": X})
    assert ended(driver.outcome(1))["size"] == 1
    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", math.inf)
    ray.kill(other)
    driver.wait_for(lambda: driver.backend.workers().ready == 2)
    driver.start(2, {"x": X}, width=2)
    assert ended(driver.outcome(2))["size"] == 2
    driver.backend.close()


SECOND = """
import math, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from hpsearch.backends import replacing
from hpsearch.backends.ray import worker_pool, session
from hpsearch.backends.ray.backend import RayBackend
from hpsearch.sweep.parts import Resources
from tests.hpsearch.support.driver import Driver
replacing.FIRST_SECONDS = 1.0
worker_pool._IDLE_SECONDS = math.inf
worker_pool._NOTICE_SECONDS = 0.0, 30.0
backend = RayBackend(Resources(workers=2, workers_per_trial=2), {address!r})
driver = Driver(backend, Path({study!r}), "together", widest=2)
told = lambda: [message.text for message in driver.messages if "no token" not in message.text]
driver.wait_for(told)
print(told()[0], flush=True)
driver.wait_for(lambda: any(slot.node for slot in backend._slots.all))
print("holds one", flush=True)
driver.start(0, {{"x": 0.5}}, end=2, width=2)
print(driver.outcome(0).reports[-1].metrics["value"], flush=True)
backend.close(kill=True)
session.shut_down()
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_sweeps_that_hold_half_a_gang_each_both_finish(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(worker_pool, "_IDLE_SECONDS", math.inf)
    first = Driver(RayBackend(Resources(workers=2, workers_per_trial=2)), tmp_path / "first", "together", widest=2)
    first.start(0, {"x": X, "pause": 0.02}, end=100_000, width=2)
    pid = int(first.metrics(0)["pid1"])
    code = SECOND.format(root=str(ROOT), address=ray_cluster.address, study=str(tmp_path / "second"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as second:
        try:
            assert second.stdout is not None
            notice = second.stdout.readline()
            assert re.search(r"a trial needs 2 workers, each 1 CPU; 0 CPUs are free; taken: 2 of \w+ \(", notice)
            os.kill(pid, signal.SIGKILL)  # its place goes to the one that waits
            assert second.stdout.readline() == "holds one\n"
            assert isinstance(first.outcome(0), Lost)
            first.start(1, {"x": X}, end=2, width=2)
            assert ended(first.outcome(1))["value"] == 4 * X
            first.backend.close(kill=True)
            assert second.stdout.read() == f"{4 * X}\n"
        finally:
            second.kill()
