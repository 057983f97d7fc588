"""hpsearch_comm.horovod's DistributedOptimizer: beside an optimizer that has the gradients of all ranks for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.horovod.horovod_ranks import HorovodRanks

_ROUNDING = 1e-6


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(3, "tests.comm.horovod.horovod_training") as ranks:
        yield ranks


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_steps_are_those_on_the_mean_of_all_gradients(ranks, kind):
    assert max(ranks.call("averages", kind)) < _ROUNDING


@pytest.mark.parametrize("op", ["Sum", "Min", "Max"])
def test_gradients_are_combined_as_asked(ranks, op):
    assert max(ranks.call("averages", "SGD", 1, None, op)) < _ROUNDING


@pytest.mark.parametrize("groups", [1, 2, 5, 9, "lists"])
@pytest.mark.parametrize("passes", [1, 3])
def test_groups_and_passes_change_nothing_of_it(ranks, groups, passes):
    assert max(ranks.call("averages", "SGD", passes, groups)) < _ROUNDING


def test_short_floats_travel_where_asked(ranks):
    assert 0 < max(ranks.call("averages_with", {"compression": "fp16"})) < 1e-3


@pytest.mark.parametrize("groups", [None, 2])
def test_gradients_may_be_divided_before_they_are_summed(ranks, groups):
    assert max(ranks.call("averages_with", {"gradient_predivide_factor": 4.0, "groups": groups})) < _ROUNDING


def test_gradients_are_clipped_between_synchronize_and_step(ranks):
    assert max(ranks.call("clips")) < _ROUNDING


def test_a_scaler_unscales_what_has_been_reduced(ranks):
    assert max(ranks.call("scales_the_loss")) < _ROUNDING


def test_a_closures_gradients_are_those_of_all_ranks(ranks):
    assert max(ranks.call("steps_with_a_closure")) < _ROUNDING


def test_schedulers_set_its_rate_and_keep_its_step(ranks):
    first, *others = ranks.call("schedules")
    assert first == [first[0]] * 2
    assert first[0][0] == 0.0625
    assert others == [first] * 2


def test_the_number_of_passes_can_change_between_steps(ranks):
    assert max(ranks.call("changes_passes")) < _ROUNDING


@pytest.mark.parametrize("groups", [None, 1, 3])
def test_a_gradient_that_a_rank_lacks_counts_as_zero(ranks, groups):
    assert max(ranks.call("gradients_that_some_ranks_lack", groups))[0] < _ROUNDING


@pytest.mark.parametrize("groups", [None, 1])
def test_parameters_that_are_frozen_later_stay_as_they_are(ranks, groups):
    assert ranks.call("frozen_parameters_stay", groups) == [True] * 3


@pytest.mark.parametrize("groups", [None, 2])
def test_parameters_that_are_thawed_later_are_reduced_from_then_on(ranks, groups):
    assert max(ranks.call("parameters_that_are_thawed_later", groups)) < _ROUNDING


def test_ranks_may_keep_weights_in_unlike_orders(ranks):
    assert max(ranks.call("unlike_memory_formats")) < 1e-5


@pytest.mark.parametrize("kind", ["SGD", "SparseAdam"])
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_are_averaged_and_stay_sparse(ranks, sparse_as_dense, kind):
    assert max(ranks.call("sparse_gradients", sparse_as_dense, kind)) < _ROUNDING


def test_it_has_the_given_optimizers_state_and_runs_its_hooks_once(ranks):
    assert ranks.call("keeps_state") == [[True, 1]] * 3


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("a model", "UsageError", "takes a torch.optim.Optimizer, got Sequential"),
        ("a model's names", "UsageError", "got ReLU: pass model.named_parameters()"),
        ("no compression", "UsageError", "compression must be hvd.Compression.none, hvd.Compression.fp16"),
        ("no such op", "ValueError", "op must be one of hvd.Average"),
        ("not pairs", "UsageError", "must be pairs of a name and a parameter, got Parameter"),
        ("a name twice", "UsageError", "must stand for one parameter, 0.weight stand for several"),
        (
            "a name missing",
            "UsageError",
            "parameter 0 of the optimizer's group 0, of shape [8, 6], isn't among the named parameters",
        ),
        ("no passes", "UsageError", "backward_passes_per_step must be an integer of 1 or more, got 0"),
        ("predivide and sum", "UsageError", "goes with op=hvd.Average alone, got op=Sum"),
        ("no groups", "UsageError", "groups must be a number of groups above 0"),
        ("groups of names", "UsageError", "groups must be lists of parameters, got str in list 0"),
        ("in two groups", "UsageError", "one of shape [8, 6] in list 1 is in another one too"),
        ("wrapped twice", "UsageError", "must not be a DistributedOptimizer already"),
        ("copied", "UsageError", "save its state_dict()"),
        ("a group of parameters", "UsageError", "can't be added to a DistributedOptimizer, got ['params']"),
        ("zero_grad in between", "OrderError", "optimizer.zero_grad() must come before loss.backward()"),
        ("a pass too many", "OrderError", "step() must follow 1 backward passes"),
        ("clipped before", "OrderError", "call optimizer.synchronize() before clipping"),
        ("unscaled before", "OrderError", "synchronize() must come before GradScaler.step()"),
        ("replaced before", "OrderError", "that of 0.weight has been changed"),
        ("other passes in between", "OrderError", "optimizer.set_backward_passes_per_step() must come before"),
    ],
)
def test_misuse_is_told_and_the_job_goes_on(ranks, what, kind, words):
    for name, text in ranks.call("misuse", what):
        assert name == kind
        assert words in text


def test_a_step_behind_synchronize_warns(ranks):
    for (text,) in ranks.call("warns_behind_synchronize"):
        assert text.startswith("optimizer.step() called without optimizer.skip_synchronize()")


def test_an_optimizer_that_is_gone_leaves_the_models_gradients_alone(ranks):
    assert ranks.call("wraps_a_model_again") == [0.0] * 3


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("rows", [[4, 4, 4], [1, 7, 2], [5, 0, 3]])
def test_batch_normalization_is_that_of_the_rows_of_all_ranks(ranks, rows, momentum):
    for differences in ranks.call("normalizes", rows, momentum):
        assert max(differences) < 1e-4


def test_ranks_outside_a_process_set_step_alone(ranks):
    assert max(ranks.call("trains_in_a_process_set"))[0] < _ROUNDING


def test_adasum_combines_the_ranks_own_steps():
    with HorovodRanks(2, "tests.comm.horovod.horovod_training") as ranks:
        for difference, kinds in ranks.call("combines_steps"):
            assert difference < _ROUNDING
            assert kinds == ["OrderError", "MissingError"]
