from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.algorithms import butterfly, direct, naive, pairwise, ring, tree
from hpsearch_comm.algorithms.cost_model import CostModel, Measurement, counts
from hpsearch_comm.algorithms.direct_allreduce import ONE_SHOT
from hpsearch_comm.errors import ConfigurationError, UsageError
from hpsearch_comm.memory.staging import CHUNK
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import reduction_for
from hpsearch_comm.topology import Topology
from tests.comm.arena_world import ArenaWorld
from tests.comm.thread_mesh import ThreadMesh, ThreadWorld

ALL = ("direct", "ring", "butterfly", "hierarchical", "naive")
REDUCE = {"ring": ring.allreduce, "butterfly": butterfly.allreduce, "naive": naive.allreduce}


def hosts(*sizes: int) -> Topology:
    """So many ranks on each host."""
    edges = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    return Topology(0, tuple(tuple(range(*pair)) for pair in itertools.pairwise(edges)))


ONE, TWO_BY_TWO, FOUR, THREE = hosts(4), hosts(2, 2), hosts(1, 1, 1, 1), hosts(1, 1, 1)


@pytest.mark.parametrize("numel", [240, butterfly.SHORT])
@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("algorithm", [*REDUCE, "tree", "pairwise"])
def test_the_model_counts_what_the_busiest_rank_sends(algorithm, size, numel):
    numel = numel // 12 * 12
    world, members = ThreadWorld(size), range(size)

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        tensor = torch.zeros(numel)
        if algorithm == "tree":
            tree.broadcast(mesh, operation, members, tensor, 0)
        elif algorithm == "pairwise":
            parts = list(tensor.tensor_split(size))
            pairwise.alltoall(mesh, operation, members, parts, [torch.empty_like(part) for part in parts])
        else:
            REDUCE[algorithm](mesh, operation, members, tensor, reduction_for("sum", torch.float32))

    world.run(task)
    moved = counts(algorithm, 4 * numel, Topology(0, tuple((rank,) for rank in members)))
    assert set(moved) == {"tcp_alpha", "tcp_beta", "gamma"}
    most = max(rank.nbytes for rank in world.moved)
    if algorithm == "tree":
        assert moved["tcp_alpha"] == max(step for rank in world.moved for step in rank.steps)
        assert moved["tcp_beta"] >= most
    elif algorithm == "butterfly" and size & (size - 1):
        # The one that stands for two receives what the other has, and sends it the result: each takes its time.
        assert moved["tcp_beta"] == most + 4 * numel
        assert moved["tcp_alpha"] == max(len(rank.steps) for rank in world.moved)
    else:
        assert moved["tcp_beta"] == most
        assert moved["tcp_alpha"] == len(world.moved[0].sent)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("nbytes", [40, ONE_SHOT // 9 // 4 * 4, ONE_SHOT // 4 + 4, 5 << 20, (12 << 20) + 4])
def test_the_model_counts_the_barriers_of_direct(size, nbytes):
    with ArenaWorld(size) as world:

        def on_rank(rank: int) -> int:
            arena, tensor = world.arenas[rank], torch.zeros(nbytes // 4)
            arena.cores = size
            before = arena.barrier._count
            direct.allreduce(arena, world.operation(rank), tensor, reduction_for("sum", torch.float32), tensor)
            return arena.barrier._count - before

        assert set(world.run(on_rank)) == {counts("direct", nbytes, hosts(size))["sigma"]}


def test_a_time_is_the_sum_of_what_is_moved():
    model = CostModel(tcp_alpha=100.0, tcp_beta=1.0, shared_alpha=10.0, shared_beta=0.1, gamma=0.01, sigma=1000.0)
    assert model.predict("ring", 400, FOUR) == pytest.approx(6 * 100 + 600 * 1 + 300 * 0.01)
    assert model.predict("ring", 400, ONE) == pytest.approx(6 * 10 + 600 * 0.1 + 300 * 0.01)
    assert model.predict("butterfly", 400, FOUR) == pytest.approx(2 * 100 + 800 * 1 + 800 * 0.01)
    assert model.predict("naive", 400, FOUR) == pytest.approx(3 * 100 + 1200 * 1 + 1200 * 0.01)
    assert model.predict("direct", 400, ONE) == pytest.approx(1000 + 400 * 0.1 + 1200 * 0.01)
    medium, large = 8 << 20, 64 << 20
    expected = (math.ceil(medium / 4 / CHUNK) + 1) * 1000 + 1.5 * medium * 0.1 + 0.75 * medium * 0.01
    assert model.predict("direct", medium, ONE) == pytest.approx(expected)
    assert model.predict("direct", large, ONE) == pytest.approx(1000 + large * 67 / 64 * (0.1 + 0.01))
    assert model.predict("hierarchical", 400, FOUR) == model.predict("butterfly", 400, FOUR)
    within = 2 * 1000 + 800 * 0.1 + 200 * 0.01
    assert model.predict("hierarchical", 400, TWO_BY_TWO) == pytest.approx(within + 100 + 400 * 1 + 200 * 0.01)


def test_one_rank_takes_no_time():
    for algorithm in ALL:
        assert CostModel().predict(algorithm, 1000, hosts(1)) == 0


def test_an_algorithm_without_a_formula_is_refused():
    with pytest.raises(UsageError, match=r"there are formulas for direct, ring, .*; got 'nccl'"):
        CostModel().predict("nccl", 1000, ONE)


@given(st.integers(0, 1 << 32), st.sampled_from([ONE, hosts(2), hosts(1)]))
def test_one_host_goes_direct_at_any_size(nbytes, topology):
    assert CostModel().choose(nbytes, topology, ALL) == "direct"


@given(st.integers(0, 1 << 32), st.sampled_from([TWO_BY_TWO, hosts(1, 3), hosts(4, 1, 2)]))
def test_hosts_with_several_ranks_go_in_two_levels_at_any_size(nbytes, topology):
    assert CostModel().choose(nbytes, topology, ALL) == "hierarchical"


def test_hosts_with_one_rank_take_the_butterfly_for_little_and_the_ring_for_much():
    assert CostModel().choose(1000, THREE, ALL) == "butterfly"
    assert CostModel().choose(64 << 20, THREE, ALL) == "ring"
    # A network that takes long for every message and no time for bytes has use for few messages only.
    assert CostModel(tcp_alpha=1.0, tcp_beta=0.0).choose(64 << 20, FOUR, ALL) == "butterfly"


def test_what_is_not_available_is_not_chosen():
    model = CostModel()
    assert model.choose(1000, ONE, ("ring",)) == "ring"
    assert model.choose(1000, TWO_BY_TWO, ("ring", "butterfly", "naive")) == "butterfly"
    assert model.choose(1000, THREE, ("naive",)) == "naive"
    assert model.choose(1000, THREE, ("naive", "hierarchical")) == "hierarchical"
    with pytest.raises(UsageError, match=r"an algorithm for allreduce to choose from, on 1 host.*got tree, pairwise"):
        model.choose(1000, ONE, ("tree", "pairwise"))
    with pytest.raises(UsageError, match=r"on 4 host.*got direct"):
        model.choose(1000, FOUR, ("direct",))
    with pytest.raises(UsageError, match="got none"):
        model.choose(1000, ONE, ())


def measured(model: CostModel, noise: float = 0.0) -> list[Measurement]:
    """What a machine with these costs would be measured at."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for algorithm, topology in [("direct", ONE), ("ring", ONE), ("ring", FOUR), ("butterfly", THREE)]:
        for nbytes in [64, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 24, 1 << 26]:
            factor = 1 + noise * float(torch.randn(1, generator=generator))
            seconds = model.predict(algorithm, nbytes, topology) * factor
            found.append(Measurement(algorithm, nbytes, topology, seconds))
    return found


TRUE = CostModel(tcp_alpha=90e-6, tcp_beta=1.1e-9, shared_alpha=3e-6, shared_beta=0.3e-9, gamma=0.2e-9, sigma=9e-6)


def test_a_fit_finds_the_costs_that_were_measured():
    found = CostModel.fit(measured(TRUE))
    for name, value in TRUE.to_dict().items():
        assert found.to_dict()[name] == pytest.approx(value, rel=0.01), name


def test_a_fit_to_noisy_times_predicts_them_about_as_well_as_the_truth():
    times = measured(TRUE, noise=0.1)
    found = CostModel.fit(times)
    for time in times:
        ratio = found.predict(time.algorithm, time.nbytes, time.topology) / time.seconds
        assert 0.6 < ratio < 1.6


def test_costs_that_nothing_was_measured_of_stay_as_they_were():
    prior = CostModel(tcp_alpha=123e-6)
    found = CostModel.fit([Measurement("direct", 1 << 20, ONE, 1e-3)], prior)
    assert found.tcp_alpha == pytest.approx(123e-6)
    assert found.predict("direct", 1 << 20, ONE) == pytest.approx(1e-3, rel=0.01)
    assert CostModel.fit([]).to_dict() == pytest.approx(CostModel().to_dict())


def test_no_cost_is_fitted_below_zero():
    # More bytes in less time: nothing explains that.
    times = [Measurement("ring", 1 << 10, FOUR, 1e-3), Measurement("ring", 1 << 20, FOUR, 1e-4)]
    assert min(CostModel.fit(times).to_dict().values()) >= 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(UsageError, match="a measured time must be a positive number of seconds"):
        CostModel.fit([Measurement("ring", 1000, FOUR, seconds)])


def test_a_model_goes_through_json():
    assert CostModel.from_dict(json.loads(json.dumps(TRUE.to_dict()))) == TRUE
    assert CostModel.from_dict({"sigma": 1e-3}) == CostModel(sigma=1e-3)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"sigma": -1.0}, r"sigma must be a number of seconds, got -1\.0"),
        ({"gamma": math.nan}, "gamma must be a number of seconds, got nan"),
        ({"tcp_alpha": "fast"}, "tcp_alpha must be a number of seconds, got 'fast'"),
        ({"tcp_alpha": True}, "tcp_alpha must be a number of seconds, got True"),
        ({"alpha": 1.0}, r"a cost model has tcp_alpha, .*, sigma; got alpha"),
    ],
)
def test_a_model_of_something_else_is_refused(costs, message):
    with pytest.raises(ConfigurationError, match=message):
        CostModel.from_dict(costs)
