from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from hpsearch_comm.cuda.eligibility import DeviceFacts, can_use_nccl, local_facts, most_ctas


def facts_of(gpu: str, process: str, nccl: int = 23203, shares: bool = False) -> DeviceFacts:
    return DeviceFacts(f"GPU-{gpu}", process, nccl, shares=shares)


def test_ranks_with_a_gpu_each_use_nccl():
    facts = [facts_of("a", "1"), facts_of("b", "2"), facts_of("c", "2")]
    assert can_use_nccl(facts) is None
    assert most_ctas(facts) is None


def test_rank_with_a_problem_is_named():
    facts = [facts_of("a", "1"), replace(facts_of("b", "2"), problem="there is no NCCL")]
    assert can_use_nccl(facts) == "rank 1: there is no NCCL"


def test_different_versions_are_named():
    facts = [facts_of("a", "1", 22809), facts_of("b", "2", 23203)]
    assert can_use_nccl(facts) == "every rank must load the same NCCL, but rank 0 has 2.28.9 and rank 1 has 2.32.3"


def test_shared_gpu_needs_a_new_nccl():
    facts = [facts_of("a", "1", 22005, True), facts_of("b", "2", 22005), facts_of("a", "3", 22005, True)]
    wanted = "ranks 0 and 2 share a GPU, which needs NCCL 2.30.0 or newer; 2.20.5 is loaded"
    assert can_use_nccl(facts) == wanted


def test_shared_gpu_needs_the_variable_on_each_of_its_ranks():
    facts = [facts_of("a", "1", shares=True), facts_of("a", "2")]
    assert can_use_nccl(facts) == (
        "ranks 0 and 1 share a GPU, which needs NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment; rank 1 doesn't have it"
    )
    facts[1] = facts_of("a", "2", shares=True)
    assert can_use_nccl(facts) is None
    assert can_use_nccl([facts[0], replace(facts[1], sharp=True)]) == (
        "ranks 0 and 1 share a GPU, which NCCL_NVLS_ENABLE=1 of rank 1 forbids: unset it"
    )


def test_threads_that_share_a_gpu_go_through_the_host():
    facts = [facts_of("a", "1", shares=True), facts_of("a", "1", shares=True)]
    assert can_use_nccl(facts) == (
        "ranks 0 and 1 share a GPU, and some of them are threads of one process: NCCL needs a process for each"
    )


@pytest.mark.parametrize(("ranks", "ctas"), [(2, 8), (3, 5), (16, 1), (40, 1)])
def test_kernels_of_ranks_that_share_a_gpu_fit_on_it_together(ranks, ctas):
    facts = [facts_of("a", str(rank), shares=True) for rank in range(ranks)]
    assert most_ctas([*facts, facts_of("b", "x")]) == ctas


def test_facts_travel_as_json():
    facts = facts_of("a", "1", shares=True)
    assert DeviceFacts(**json.loads(json.dumps(asdict(facts)))) == facts


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_machine_without_a_gpu_says_so():
    facts = local_facts(torch.device("cuda", 0))
    assert facts.problem is not None
    assert "torch is built for CPUs" in facts.problem or "sees no GPU" in facts.problem
    reason = can_use_nccl([facts, facts])
    assert reason is not None
    assert reason.startswith("rank 0: torch ")


def test_facts_of_a_gpu(monkeypatch):
    class Properties:
        uuid = "1234-5678"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: Properties())
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    facts = local_facts(torch.device("cuda", 1))
    assert facts.gpu == "1234-5678"
    assert (facts.shares, facts.sharp) == (True, True)
    assert facts.problem == "torch is built without NCCL"
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0")
    assert local_facts(torch.device("cuda", 1)) == replace(facts, shares=False)
