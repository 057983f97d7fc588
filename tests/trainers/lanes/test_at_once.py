"""What is computed for all lanes in one call, beside what torch gives each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hpsearch_trainers.lanes import NotFusible, algorithms
from hpsearch_trainers.lanes.algorithms import deterministic_algorithms
from hpsearch_trainers.lanes.bits import nearly_equal
from hpsearch_trainers.lanes.losses import cross_entropies_at_once, sums
from tests.trainers.lanes.networks import Drawn, made
from tests.trainers.lanes.ways import FEW_CALLS


@given(
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from([1.0, 0.25, 1 / 3]),
    st.sampled_from([1e-3, 1.0, 30.0]),
    st.integers(0, 99),
    st.booleans(),
)
def test_cross_entropies_are_torchs_but_for_rounding(lanes, rows, classes, share, scale, seed, no_number):
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(lanes, rows, classes, generator=generator)
    if no_number:
        scores[-1, 0] = float("nan")
    targets = torch.randint(classes, (lanes, rows), generator=generator)
    losses, coming = cross_entropies_at_once(scores, targets, share)
    for lane in range(lanes):
        alone = scores[lane].clone().requires_grad_()
        loss = functional.cross_entropy(alone, targets[lane])
        (gradient,) = torch.autograd.grad(loss * share, alone)
        torch.testing.assert_close(losses[lane], loss.detach(), equal_nan=True)
        assert nearly_equal(coming[lane], gradient)


@given(st.permutations(range(4)), st.integers(1, 200), st.integers(0, 99))
def test_a_lanes_sum_and_cross_entropy_dont_depend_on_its_place(order, count, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, count, 3, generator=generator)
    targets = torch.randint(3, (4, count), generator=generator)
    assert torch.equal(sums(scores[order, :, 0]), sums(scores[..., 0])[order])
    ours, theirs = (
        cross_entropies_at_once(scores[order], targets[order], 1.0),
        cross_entropies_at_once(scores, targets, 1.0),
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other[order])


def _modes() -> tuple[object, ...]:
    cudnn, deterministic = torch.backends.cudnn, torch.utils.deterministic
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.get_deterministic_debug_mode(), cudnn.benchmark, cudnn.deterministic, filled


def test_on_a_gpu_only_algorithms_that_repeat_are_taken_and_all_is_as_before_after_it():
    before = _modes()
    try:
        torch.backends.cudnn.benchmark = True
        torch.set_deterministic_debug_mode("warn")
        own = _modes()
        try:
            with deterministic_algorithms(torch.device("cuda")):
                assert _modes() == (2, False, True, False)
                raise ArithmeticError
        except ArithmeticError:
            assert _modes() == own
        with deterministic_algorithms(torch.device("cpu")):
            assert _modes() == own
    finally:
        torch.set_deterministic_debug_mode(int(before[0]))  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = bool(before[1])


class _Reads(TorchDispatchMode):
    """Counts what waits for the device: numbers that Python asks for, and what goes from there to the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to_cpu = func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") == torch.device("cpu")
        self.count += to_cpu or func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.some_cases(1)
@FEW_CALLS
@pytest.mark.parametrize("optimizer", ["momentum", "fused sgd"])
def test_an_epoch_waits_for_the_device_as_often_whatever_its_steps(optimizer, way):
    counts = set()
    for batch_size in (53, 5):
        shared = {"layers": ["layer norm", "batch norm"], "batch_size": batch_size, "clip_norm": 1.0, "average": 0.9}
        trainers = made(Drawn, [{**shared, "optimizer": optimizer, "dropout": 0.1 * lane} for lane in range(3)])
        fuser = way(4)
        for _ in range(2):  # in which it is tried and recorded
            fuser.step(trainers)
        with _Reads() as reads:
            stepped = fuser.step(trainers)
        assert [(one.lanes, one.error) for one in stepped] == [(3, None)] * 3
        counts.add(reads.count)
    assert len(counts) == 1


def test_where_cublas_was_used_before_it_was_told_to_repeat_itself_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(algorithms, "_is_late", True)
    with (
        pytest.raises(NotFusible, match="before a process uses CUDA"),
        algorithms.deterministic_algorithms(torch.device("cuda")),
    ):
        pass
    with algorithms.deterministic_algorithms(torch.device("cpu")):
        pass
