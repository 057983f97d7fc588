"""Parameters of any dtype, shape, layout and kinship move into one memory as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hpsearch_comm import Group, MismatchError
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.hogwild import OneCopy
from tests.comm.thread_ranks import run_ranks

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@st.composite
def pieces(draw: Any) -> list[tuple[Any, ...]]:
    """Draw parameters: of memory of their own, or views of an earlier one's."""
    drawn: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(0, 6))):
        if drawn and draw(st.booleans()):
            drawn.append(
                ("view", draw(st.integers(0, len(drawn) - 1)), draw(st.sampled_from(("all", "half", "turned"))))
            )
        else:
            drawn.append(("own", draw(st.sampled_from(DTYPES)), draw(SHAPES)))
    return drawn


def built(drawn: list[tuple[Any, ...]], seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []
    for kind, what, how in drawn:
        if kind == "own":
            tensors.append(torch.randint(0, 2, how, generator=generator).to(what))
        else:
            seen = tensors[what]
            cut = seen[: len(seen) // 2] if how == "half" and seen.dim() else seen
            tensors.append(cut.t() if how == "turned" and seen.dim() == 2 else cut)
    model = nn.Module()
    for number, tensor in enumerate(tensors):
        model.register_parameter(f"p{number}", nn.Parameter(tensor, requires_grad=False))
    return model


@settings(max_examples=25, deadline=None)
@given(pieces())
def test_values_strides_and_shared_memory_stay(drawn):
    expected = list(built(drawn, seed=0).parameters())

    def work(group: Group) -> tuple[OneCopy, list[nn.Parameter]]:
        model = built(drawn, seed=group.rank)
        before = list(model.parameters())
        copy = OneCopy(model, group)
        group.barrier()
        after = list(model.parameters())
        assert all(one is other for one, other in zip(before, after, strict=True))
        for one, other in zip(after, expected, strict=True):
            assert one.equal(other)
            assert (one.dtype, one.stride(), one.storage_offset()) == (
                other.dtype,
                other.stride(),
                other.storage_offset(),
            )
        group.barrier()
        return copy, after

    (_, first), (_, second) = run_ranks(2, work)
    for number, one in enumerate(first):
        if one.numel() > 0:  # written to on one rank, a parameter and all that share its memory change on the other
            one.zero_()
            expected[number].zero_()
            assert all(mine.equal(other) for mine, other in zip(second, expected, strict=True))


def test_parameters_that_lie_elsewhere_are_told():
    def work(group: Group) -> str:
        model: Any = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        copy = OneCopy(model, group)
        model[0].bias.data = model[0].bias.data.clone()
        model[1].weight = nn.Parameter(torch.ones(2, 2))
        with pytest.raises(ConfigurationError) as caught:
            copy.release()
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "got other memory in the place of 0.bias, 1.weight: let the model write into it" in text


@pytest.mark.parametrize("other", [None, 1])
def test_memory_that_is_shared_otherwise_on_another_rank_is_told(other):
    def work(group: Group) -> str:
        layers: Any = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
        shares = 0 if group.rank == 0 else other
        if shares is not None:
            layers[2].weight.data = layers[shares].weight.data
        with pytest.raises(MismatchError) as caught:
            OneCopy(layers, group)
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "where the model's parameters lie must be the same on every rank; the first difference: rank 0" in text
