"""What one pack has recorded is played by another one, on its own stacks, data, generators and rates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes import Fuser, Pack, Stepped, check_pack
from hpsearch_trainers.lanes.passes import Recorded
from hpsearch_trainers.lanes.recorder import Recorder, as_one_call
from hpsearch_trainers.lanes.shell import Shell
from tests.trainers.lanes.networks import LAYERS, Drawn, assert_same, made


def reported(stepped: Sequence[Stepped]) -> list[dict[str, float]]:
    for one in stepped:
        assert one.error is None, one.error
        assert one.alone_because is None
    return [one.metrics for one in stepped if one.metrics is not None]


def check(kind: type[Trainer], lanes: Sequence[dict[str, Any]], epochs: Sequence[Sequence[int]]) -> None:
    """Train, in each epoch those that are present in it, and compare with each alone."""
    ours, theirs = made(kind, lanes), made(kind, lanes)
    fuser = Fuser(fewest=2)
    for present in epochs:
        stepped = fuser.step([ours[number] for number in present])
        expected = [theirs[number].step() for number in present]
        assert_same(reported(stepped), expected, ours, theirs)


OF_ALL_KINDS = [{"own data": data, "dropout": rate} for rate in (0.0, 0.5) for data in (None, 3, 4)]

SETS = st.lists(st.sets(st.integers(0, 5), min_size=2).map(sorted), min_size=2, max_size=6)


@pytest.mark.exhaustive
@given(SETS, st.sampled_from(sorted(LAYERS)), st.sampled_from([None, 0.9]), st.sampled_from([None, 0.5]))
@example([[0, 1], [2, 3], [0, 2], [4, 5], [0, 2], [1, 3]], "batch norm", None, None)
@settings(max_examples=6)
def test_packs_play_what_others_recorded_with_the_bits_of_each_alone(epochs, layer, average, clip_norm):
    common = {"layers": [layer], "average": average, "clip_norm": clip_norm, "batch_size": 16}
    check(Drawn, [{**common, **lane} for lane in OF_ALL_KINDS], epochs)


def test_a_pack_plays_what_was_recorded_where_its_shape_was_tried():
    trainers = made(Drawn, [{"layers": [], "batch_size": 16}] * 2)
    recordings: dict[Hashable, Recorded | None] = {}
    check_pack(trainers[0], 2, recordings)
    known = recordings.copy()
    assert known
    Pack(trainers, recordings=recordings).step()
    assert recordings == known


class OfParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores, self.guess = nn.Linear(7, 5), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(x), self.guess(x).squeeze(1)


def of_parts(output: Any, target: Tensor, share: float) -> Tensor:
    scores, guess = output
    loss = functional.cross_entropy(scores, target)
    return loss + share * guess.square().mean() if share else loss


class WithParts(Drawn):
    """Some of its trials have no use for one of its model's outputs."""

    def build(self, params):
        parts = super().build({"layers": [], "batch_size": 16})  # type: ignore[no-untyped-call]
        model = OfParts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        loss = functools.partial(of_parts, share=params["share"])
        return Parts(model, optimizer, loss, parts.train, parts.validation, batch_size=16)


def test_lanes_whose_losses_are_of_other_outputs_play_no_recording_that_is_not_theirs():
    lanes = [{"share": share} for share in (0.0, 0.0, 0.5, 0.0)]
    check(WithParts, lanes, [[0, 1], [0, 1], [2, 3], [2, 3], [0, 3], [0, 1], [2, 3]])


SCALES = [torch.ones(5), torch.full((5,), 2.0)]


class OfTable(nn.Module):
    """Multiplies by a tensor that isn't its own, and is another one by and by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made * SCALES[0]


class WithTable(Drawn):
    def build(self, params):
        parts = super().build({"layers": [], "batch_size": 16})  # type: ignore[no-untyped-call]
        model = OfTable()
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], fused=True)
        return Parts(model, optimizer, parts.loss, parts.train, parts.validation, batch_size=16)


def test_what_was_recorded_of_a_tensor_that_is_in_no_pack_is_played_by_its_own_pack_alone():
    lanes = [{"lr": lr} for lr in (0.1, 0.2, 0.3, 0.4)]
    ours, theirs = made(WithTable, lanes), made(WithTable, lanes)
    fuser = Fuser(fewest=2)
    for present in ([0, 1], [0, 1], [2, 3], [2, 3]):
        if present == [2, 3]:
            SCALES.sort(key=lambda scale: -float(scale[0]))
        expected = [theirs[number].step() for number in present]
        assert_same(reported(fuser.step([ours[number] for number in present])), expected, ours, theirs)
    SCALES.sort(key=lambda scale: float(scale[0]))


def test_a_recording_is_of_any_pack_where_all_that_stays_is_a_role_or_in_the_code():
    table, other = torch.arange(6.0).reshape(2, 3), torch.ones(3)

    def recorded(compute: Any, roles: Sequence[object]) -> Any:
        x = torch.zeros(3)
        recorder = Recorder([x], roles)
        with recorder:
            result = compute(x)
        return recorder.recording([result])

    whole = recorded(lambda x: x + table.t()[:, 1] * torch.tensor([1.0, 2.0, 3.0]), [table])
    assert whole.of_any_pack
    tape = whole.tape([torch.full((2, 3), 10.0)])
    assert tape.forward(torch.ones(3))[0][0].tolist() == [11.0, 21.0, 31.0]
    assert not recorded(lambda x: x + other, [table]).of_any_pack


def test_what_is_called_as_one_is_called_with_what_its_arguments_are_by_then():
    rates = [1.0, 2.0]
    given_tensor = torch.zeros(2)
    recorder = Recorder([given_tensor], [rates])
    with recorder:
        result = as_one_call(lambda x, factors: x + torch.tensor(factors), given_tensor, rates) * 2
    recording = recorder.recording([result])
    assert recording is not None
    tape = recording.tape([rates])
    rates[:] = [3.0, 4.0]
    assert tape.forward(torch.ones(2))[0][0].tolist() == [8.0, 10.0]
    assert recording.tape([[0.0, 1.0]]).forward(torch.ones(2))[0][0].tolist() == [2.0, 4.0]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("layer", ["batch norm", "gated", "attending"])
def test_one_recording_of_each_kind_of_batch_is_made_for_all_packs_of_a_size(layer, monkeypatch):
    monkeypatch.setattr("hpsearch_trainers.lanes.fuser._results", {})
    lanes = [{"layers": [layer], "lr": 0.1 * (1 + number), "batch_size": 16} for number in range(4)]
    Fuser(fewest=2).step(made(Drawn, lanes))  # a process tries once how many fit, and keeps what these trials recorded
    trainers = made(Drawn, lanes)
    fuser = Fuser(fewest=2)
    for present in ([0, 1], [2, 3], [0, 3], [1, 2]):
        fuser.step([trainers[number] for number in present])
        (recordings,) = fuser._recordings.values()
        of_each: dict[Any, Any] = recordings.recorded
        of_two = [one for (_, _, (_, (rows, *_))), one in of_each.items() if rows[0] == 2]
        # Full batches and the last one, to train on and to validate on.
        assert len(of_two) == 4
        assert None not in of_two


def test_what_was_recorded_is_tried_once_for_those_that_are_known_to_be_alike(monkeypatch):
    lanes = [{"layers": ["relu"], "lr": 0.1 * (1 + number), "batch_size": 16} for number in range(9)]
    trainers, fuser, computed = made(Drawn, lanes), Fuser(fewest=2), list[str]()
    monkeypatch.setattr(Pack, "_train", noted("epoch", computed, Pack._train))
    monkeypatch.setattr(Shell, "__call__", noted("python", computed, Shell.__call__))

    def step(*present: int) -> bool:
        """Train some; say whether a batch beside the first one went through Python."""
        computed.clear()
        reported(fuser.step([trainers[number] for number in present]))
        return computed[computed.index("epoch") :].count("python") > 1

    assert step(0, 1, 2, 3), "it is recorded"
    assert [step(2, 0, 1, 3), step(1, 2, 3, 4), step(4, 0, 2, 1)] == [False] * 3
    assert step(5, 6, 7, 8), "nobody knows yet what the first one does"
    assert [step(5, 6, 0, 1), step(6, 8, 7, 5)] == [False] * 2


def test_what_was_recorded_is_there_for_the_next_sweep_of_the_process_and_tried_once_more(monkeypatch):
    lanes = [{"layers": ["tanh"], "lr": 0.1 * (1 + number), "batch_size": 16} for number in range(5)]
    recorders: list[str] = []
    monkeypatch.setattr(Recorder, "__init__", noted("recorder", recorders, Recorder.__init__))
    for _ in range(2):
        ours, theirs, fuser = made(Drawn, lanes), made(Drawn, lanes), Fuser(fewest=2)
        recorders.clear()
        for present in (slice(5), slice(4)):
            expected = [one.step() for one in theirs[present]]
            assert_same(reported(fuser.step(ours[present])), expected, ours, theirs)
    assert recorders == []


FACTORS = dict.fromkeys(range(300), 1.0)
"""So many that nobody looks into it."""


class OfFactor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) * FACTORS[0]


class WithFactor(Drawn):
    def build(self, params):
        parts = super().build({"layers": [], "batch_size": 16})  # type: ignore[no-untyped-call]
        model = OfFactor()
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], fused=True)
        return Parts(model, optimizer, parts.loss, parts.train, parts.validation, batch_size=16)


def test_the_next_sweep_plays_nothing_of_a_model_that_reads_something_else_by_then(monkeypatch):
    for factor in (1.0, 2.0):
        monkeypatch.setitem(FACTORS, 0, factor)
        check(WithFactor, [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}], [[0, 1], [1, 2], [0, 1, 2]])


def test_who_does_what_newer_recordings_do_is_not_trusted_with_older_ones(monkeypatch):
    lanes = [{"lr": 0.1 * (1 + number)} for number in range(12)]
    ours, theirs, fuser = made(WithFactor, lanes), made(WithFactor, lanes), Fuser(fewest=2)
    for factor, present in ((1.0, [0, 1]), (2.0, [2, 3, 4, 5]), (2.0, [6, 7, 8, 9]), (2.0, [6, 7]), (2.0, [7, 6])):
        monkeypatch.setitem(FACTORS, 0, factor)
        expected = [theirs[number].step() for number in present]
        assert_same(reported(fuser.step([ours[number] for number in present])), expected, ours, theirs)


def noted(name: str, calls: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*given: Any) -> Any:
        calls.append(name)
        return function(*given)

    return called
