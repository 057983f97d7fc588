from __future__ import annotations

from hpsearch_comm.topology import Topology


def test_ranks_with_equal_identities_share_a_host():
    topology = Topology.of(3, ["b", "a", "b", "a", "c"])
    assert topology.hosts == ((0, 2), (1, 3), (4,))
    assert (topology.size, topology.rank, topology.host_index) == (5, 3, 1)
    assert (topology.local_ranks, topology.local_rank, topology.local_size) == ((1, 3), 1, 2)


def test_one_rank_is_alone_on_its_host():
    topology = Topology.of(0, ["a"])
    assert (topology.hosts, topology.size, topology.local_rank, topology.local_size) == (((0,),), 1, 0, 1)
