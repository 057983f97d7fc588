from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

import hpsearch_comm
from hpsearch.errors import BackendError
from hpsearch.objective import Metric, Objective
from hpsearch.worker.gang import GangListener, GangStore, RankInfo
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.worker import Worker
from hpsearch_comm.environment import read_environment

SECRET = bytes(range(32))


def test_a_seat_counts_the_workers_of_its_node() -> None:
    rank_infos = [RankInfo(rank, ("",) * 5, ("a", "a", "b", "b", "b"), SECRET) for rank in range(5)]
    assert [(rank_info.local_rank, rank_info.local_width) for rank_info in rank_infos] == [
        (0, 2),
        (1, 2),
        (0, 3),
        (1, 3),
        (2, 3),
    ]
    assert {rank_info.width for rank_info in rank_infos} == {5}
    assert SECRET.hex() not in repr(rank_infos[0])
    assert repr(SECRET) not in repr(rank_infos[0])


def test_listeners_form_one_group_after_the_other_whatever_another_launcher_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HPSEARCH_COMM_ALGORITHM", "naive")
    listeners = [GangListener("", "127.0.0.1") for _ in range(2)]
    addresses: list[tuple[str, ...]] = []
    for _ in range(2):
        addresses.append(tuple(listener.address for listener in listeners))
        assert tuple(listener.address for listener in listeners) == addresses[-1]
        sums: dict[int, float] = {}

        def work(rank: int, sums: dict[int, float] = sums) -> None:
            with listeners[rank].join(RankInfo(rank, addresses[-1], ("", ""), SECRET)) as group:
                sums[rank] = group.allreduce(torch.tensor([rank + 1.0]), op="sum").item()
                assert group.last_algorithm == "naive"
            listeners[rank].close()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == {0: 3.0, 1: 3.0}
    assert not set(addresses[0]) & set(addresses[1])
    assert caplog.records == []


def test_a_gang_of_another_secret_is_refused() -> None:
    listeners = [GangListener("", "127.0.0.1") for _ in range(2)]
    addresses = tuple(listener.address for listener in listeners)
    errors: dict[int, BaseException] = {}

    def work(rank: int) -> None:
        try:
            listeners[rank].join(RankInfo(rank, addresses, ("", ""), bytes([rank]) * 32))
        except hpsearch_comm.CommError as error:
            errors[rank] = error
        finally:
            listeners[rank].close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(errors[1], hpsearch_comm.RefusedError)


@pytest.mark.parametrize("trainable", [print, CommandLine("script", ("sh",), ".")])
def test_an_interface_that_isnt_there_is_named(tmp_path: Path, trainable: object) -> None:
    job = Job(str(tmp_path), "sweep", trainable, (), Objective(Metric("loss")), None, 1, widest=2)  # type: ignore[arg-type]
    worker = Worker(job, tmp_path, interface="nosuch0")
    try:
        with pytest.raises(BackendError, match="nosuch0"):
            _ = worker.address
    finally:
        worker.close()


@pytest.mark.parametrize(("given", "timeout", "silence"), [({}, 300.0, 60.0), ({"": "7", "HEARTBEAT_": "5"}, 7.0, 5.0)])
def test_ranks_wait_for_each_other_as_the_nodes_variables_say(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], timeout: float, silence: float
) -> None:
    for name in ("", "HEARTBEAT_"):
        monkeypatch.delenv(f"HPSEARCH_COMM_{name}TIMEOUT", raising=False)
    for name, seconds in given.items():
        monkeypatch.setenv(f"HPSEARCH_COMM_{name}TIMEOUT", seconds)
    listener = GangListener("", None)
    with listener.join(RankInfo(0, (listener.address,), ("",), bytes(32))) as group:
        assert (group._options.timeout, group._options.heartbeat_timeout) == (timeout, silence)
    rank_info = RankInfo(0, ("127.0.0.1:1", "127.0.0.1:2"), ("", ""), bytes(32))
    for_script = os.environ | GangStore("", "127.0.0.1").environment(rank_info)
    expected = {"timeout": timeout, "heartbeat_timeout": silence} if given else {}
    options = read_environment(for_script).options
    assert {name: value for name, value in options.items() if name.endswith("timeout")} == expected
