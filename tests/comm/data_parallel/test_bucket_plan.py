from __future__ import annotations

from hpsearch_comm.data_parallel.bucket_plan import Arrivals, plan_buckets


def plan(*arrivals: Arrivals, kinds="aaaa", sizes=(4, 4, 4, 4), first=4, full=8, large=1000):
    return plan_buckets(arrivals, kinds, sizes, first, full, large)


def test_buckets_follow_the_order_of_arrival_and_the_first_is_small():
    assert plan(Arrivals([3, 2, 1, 0])).buckets == [[3], [2, 1], [0]]


def test_the_lowest_rank_that_saw_anything_says_the_order():
    assert plan(Arrivals(), Arrivals([2, 0, 1, 3]), Arrivals([0, 1, 2, 3])).buckets == [[2], [0, 1], [3]]


def test_what_only_a_later_rank_saw_follows():
    assert plan(Arrivals([1, 3]), Arrivals([3, 0, 1, 2]), full=100).buckets == [[1], [3, 0, 2]]


def test_what_no_rank_used_comes_last_in_buckets_of_its_own():
    assert plan(Arrivals([2]), first=100).buckets == [[2], [3, 1, 0]]


def test_what_arrived_twice_waits_for_the_end_in_the_last_buckets():
    made = plan(Arrivals([3, 2, 1], {2}), Arrivals([3, 2, 1]), first=100)
    assert made.buckets == [[3, 1], [2, 0]]
    assert made.late == {2}


def test_sparse_on_one_rank_is_sparse_on_all():
    made = plan(Arrivals([3, 2, 1, 0]), Arrivals([2, 1], {1}, {1: 1}), full=100)
    assert made.buckets == [[3], [2, 0]]
    assert made.sparse == {1: 1}
    assert made.late == set()


def test_each_kind_has_buckets_of_its_own_in_the_order_in_which_they_are_complete():
    assert plan(Arrivals([0, 1, 2, 3]), kinds="abba", first=8).buckets == [[1, 2], [0, 3]]
    assert plan(Arrivals([0, 1, 2, 3]), kinds="abab", first=100).buckets == [[0, 2], [1, 3]]


def test_a_parameter_that_is_larger_than_a_bucket_has_one_alone():
    assert plan(Arrivals([0, 1, 2, 3]), sizes=(1, 100, 1, 1), first=1, full=2).buckets == [[0], [1], [2, 3]]


def test_a_rank_without_arrivals_at_all_still_gets_buckets():
    assert plan(Arrivals(), first=100).buckets == [[3, 2, 1, 0]]


def test_a_large_gradient_is_a_bucket_of_its_own_and_small_ones_come_last():
    made = plan(Arrivals([3, 2, 1, 0]), sizes=(50, 4, 50, 4), first=100, large=50)
    assert made.buckets == [[2], [0], [3, 1]]


def test_where_all_gradients_are_large_an_empty_bucket_comes_last():
    assert plan(Arrivals([3, 2, 1, 0]), large=4).buckets == [[3], [2], [1], [0], []]


def test_a_model_of_sparse_gradients_has_no_buckets():
    assert plan(Arrivals([3, 2, 1, 0], set(), {0: 1, 1: 1, 2: 1, 3: 1})).buckets == []
