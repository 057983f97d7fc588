"""The yardstick of the elastic benchmark: small cases of ASHA that can be counted by hand."""

from __future__ import annotations

import pytest

from tests.benchmarks.asha import asha_makespan


@pytest.mark.parametrize(("max_iter", "eta", "workers"), [(27, 3, 27), (81, 3, 81), (4, 2, 4), (9, 3, 1000)])
def test_with_workers_enough_the_best_trial_runs_without_a_pause(max_iter, eta, workers):
    """Nothing makes one worker's R iterations shorter."""
    assert asha_makespan(workers, max_iter, eta, float) == max_iter


def test_one_worker_runs_one_job_after_the_other():
    """By 2 to R=4: trials 0 1, promote 0 (1 more), 2 3, promote 1, promote 0 (2 more): four firsts, 1 + 1 + 2."""
    assert asha_makespan(1, 4, 2, float) == 4 * 1 + 1 + 1 + 2


def test_the_best_of_a_rung_is_promoted_though_it_came_later():
    """Trial 1 beats 0; then 0 is of the best half of four as well."""
    order = [2.0, 1.0, 3.0, 4.0]
    assert asha_makespan(1, 2, 2, order.__getitem__) == 1 + 1 + 1


def test_iterations_take_what_they_are_said_to_take():
    assert asha_makespan(9, 9, 3, float, seconds=lambda iterations: 2.0 * iterations) == 18
