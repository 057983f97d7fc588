"""What was recorded of a step gives the next step's bits, or nothing is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, NotFusible, Pack
from hpsearch_trainers.lanes.recorder import Recorder
from hpsearch_trainers.lanes.tape import Tape
from tests.trainers.lanes.networks import Drawn, assert_same, made

TABLE = torch.arange(12.0).reshape(4, 3)


def recorded(compute: Callable[..., Any], *inputs: Tensor) -> Tape | None:
    recorder = Recorder(inputs)
    with recorder:
        result = compute(*inputs)
    recording = recorder.recording(result if isinstance(result, Sequence) else [result])
    return None if recording is None else recording.tape([])


def normalized(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True).relu() * 2 - x.mean(0)


def in_place(x: Tensor) -> Tensor:
    y = x * 3
    y[:, 1].add_(1).mul_(x[:, 0])
    return y.view(-1).sigmoid_()


def of_many(x: Tensor) -> list[Tensor]:
    first, *others = x.chunk(3, 1)
    values, places = torch.stack([first, *others]).max(0)
    return [values, places, x.detach()]


def from_a_table(x: Tensor) -> Tensor:
    weights = torch.tensor([0.5, 2.0, 1.0])
    return TABLE.t().unsqueeze(0)[:, :, 1:].sum(2) + x * weights


def by_whole_numbers(x: Tensor) -> Tensor:
    return TABLE[x.argmax(1)]


@pytest.mark.parametrize("compute", [normalized, in_place, of_many, from_a_table, by_whole_numbers])
def test_a_tape_computes_anew(compute):
    tape = recorded(compute, torch.randn(5, 3))
    assert tape is not None
    for _ in range(2):
        x = torch.randn(5, 3)
        given, kept = tape.forward(x.clone())
        expected = compute(x.clone())
        assert kept == []
        for one, other in zip(given, expected if isinstance(expected, list) else [expected], strict=True):
            assert torch.equal(one, other)


def test_memory_that_stays_is_read_as_it_is_by_then():
    table = torch.ones(3)
    tape = recorded(lambda x: x + table.view(1, 3), torch.zeros(2, 3))
    assert tape is not None
    table.fill_(5.0)
    assert tape.forward(torch.zeros(2, 3))[0][0].tolist() == [[5.0] * 3] * 2


def test_a_generator_goes_on():
    generator = torch.Generator().manual_seed(1)
    tape = recorded(lambda x: x + torch.rand(3, generator=generator), torch.zeros(3))
    assert tape is not None
    expected = torch.Generator().manual_seed(1)
    torch.rand(3, generator=expected)
    assert torch.equal(tape.forward(torch.zeros(3))[0][0], torch.rand(3, generator=expected))


def reads_a_number(x: Tensor) -> Tensor:
    return x * float(x.sum())


def branches(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def counts_what_is_there(x: Tensor) -> Tensor:
    positive = x[x > 0]
    return positive.sum() / len(positive)


def by_bytes(x: Tensor) -> Tensor:
    return x[(x > 0).to(torch.uint8)].sum()


def changes_a_literal(x: Tensor) -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0]).add_(x[0]) * 2


def changes_its_shape(x: Tensor) -> Tensor:
    return x.clone().t_() @ x


def by_way_of_numpy(x: Tensor) -> Tensor:
    return x * torch.from_numpy(x.numpy())


def gives_what_it_has(x: Tensor) -> Tensor:
    return TABLE


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize(
    "compute",
    [
        *(reads_a_number, branches, counts_what_is_there, by_bytes, changes_a_literal, changes_its_shape),
        *(by_way_of_numpy, gives_what_it_has),
    ],
)
def test_what_follows_numbers_is_not_recorded(compute):
    assert recorded(compute, torch.rand(5, 3) + 0.1) is None


def test_a_pass_back_goes_on_from_what_the_pass_forward_keeps():
    weight = torch.randn(3, 4, requires_grad=True)

    def forward(x: Tensor) -> Tensor:
        return torch.tanh(x @ weight)

    x, coming = torch.randn(5, 3), torch.randn(5, 4)
    recorder = Recorder([x])
    with recorder:
        output = forward(x)
    recorder.cut([output], [coming])
    with recorder:
        (gradient,) = torch.autograd.grad([output], [weight], [coming])
    recording = recorder.recording([gradient])
    assert recording is not None
    tape = recording.tape([])
    assert tape.backward is not None
    x, coming = torch.randn(5, 3), torch.randn(5, 4)
    with torch.no_grad():
        given, kept = tape.forward(x)
        found = tape.backward(kept, coming)
    assert kept == [], "it is used up"
    expected = forward(x)
    assert torch.equal(given[0], expected)
    assert found[0] is not None
    assert torch.equal(found[0], torch.autograd.grad([expected], [weight], [coming])[0])


class Various(Drawn):
    """Its model, and with `loss` in its params its loss, are those of the test."""

    model_of: Callable[[], nn.Module]
    loss_of: Callable[[Any, Tensor], Tensor] = staticmethod(functional.cross_entropy)

    def build(self, params):
        parts = super().build({"layers": [], "batch_size": 16, **params})  # type: ignore[no-untyped-call]
        model = type(self).model_of()
        optimizer = torch.optim.SGD(model.parameters(), params.get("lr", 0.1), momentum=0.9)
        kind = {"clip_norm": params.get("clip_norm"), "accumulate": params.get("accumulate", 1)}
        return Parts(model, optimizer, type(self).loss_of, parts.train, parts.validation, batch_size=16, **kind)


def check(model: Callable[[], nn.Module], loss: Any = functional.cross_entropy, **params: Any) -> None:
    kind = type("Given", (Various,), {"model_of": staticmethod(model), "loss_of": staticmethod(loss)})
    lanes = [{"lr": lr, **params} for lr in (0.01, 0.1, 0.3)]
    ours, theirs = made(kind, lanes), made(kind, lanes)
    pack = Pack(ours, recordings={})
    for _ in range(3):
        assert_same(pack.step(), [one.step() for one in theirs], ours, theirs)


class Positive(nn.Module):
    """Means over what is positive: shapes within it follow numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made * torch.stack([row[row > -9].mean() for row in made.detach()]).unsqueeze(1)


class Twins(nn.Module):
    """Two parameters get one and the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)
        self.first, self.second = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) + (self.first + self.second)
        return made


class Two(nn.Module):
    """A module with nested outputs, of which one has no gradient and one is a text."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(7, 5), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"scores": self.layer(x), "sizes": (x.norm(dim=1), self.other(x)), "name": "two"}


def of_two(output: Any, target: Tensor) -> Any:
    sizes, guesses = output["sizes"]
    return functional.cross_entropy(output["scores"], target) + (guesses.squeeze(1) - sizes).square().mean()


def of_one_of_two(output: Any, target: Tensor) -> Tensor:
    return functional.cross_entropy(output["scores"], target)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (Twins, functional.cross_entropy),
        (Twins, lambda output, target: functional.cross_entropy(output, target)),
        (Two, of_two),
        (Two, of_one_of_two),
    ],
)
def test_models_of_all_kinds_have_their_bits(model, loss, clip_norm, accumulate):
    check(model, loss, clip_norm=clip_norm, accumulate=accumulate)


def test_a_model_whose_shapes_follow_numbers_has_its_bits():
    check(Positive)


def test_a_rate_of_dropout_that_changes_is_followed():
    lanes = [{"lr": 0.1, "dropout": rate, "layers": ["relu"], "batch_size": 16} for rate in (0.2, 0.5)]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    pack = Pack(ours)
    for epoch in range(5):
        for trainer in (*ours, *theirs):
            trainer.model[-2].p = 0.1 * epoch  # type: ignore[index]
        assert_same(pack.step(), [one.step() for one in theirs], ours, theirs)


def test_a_loss_that_becomes_another_one_is_followed():
    lanes = [{"lr": lr, "layers": ["relu"], "batch_size": 16} for lr in (0.1, 0.2)]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    losses = [nn.CrossEntropyLoss() for _ in (*ours, *theirs)]
    for trainer, loss in zip((*ours, *theirs), losses, strict=True):
        trainer.parts = dataclasses.replace(trainer.parts, loss=loss)
    pack = Pack(ours)
    for epoch in range(5):
        for loss in losses:
            loss.label_smoothing = 0.1 * (epoch // 2)
        assert_same(pack.step(), [one.step() for one in theirs], ours, theirs)


def test_a_loss_that_takes_other_outputs_from_batch_to_batch_is_told_so():
    seen: list[int] = []

    def changing(output: Any, target: Tensor) -> Tensor:
        seen.append(1)
        return (of_one_of_two if len(seen) % 4 > 2 else of_two)(output, target)

    kind = type("Given", (Various,), {"model_of": Two, "loss_of": staticmethod(changing)})
    pack = Pack(made(kind, [{"lr": 0.1}, {"lr": 0.2}]), recordings={})
    with pytest.raises(NotFusible, match="other parts of its model's output"):
        pack.step()


TEMPERATURE = [1.0]


class Tempered(nn.Module):
    """Reads a global variable."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) * TEMPERATURE[0]
        return made


class Cooling(Drawn):
    """Its schedule changes what its model reads, from step to step."""

    def build(self, params):
        parts = super().build({"layers": [], **params})  # type: ignore[no-untyped-call]
        model = Tempered()

        def schedule(epoch: float) -> float:
            TEMPERATURE[0] = 1 / (1 + epoch)
            return 1.0

        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return Parts(model, optimizer, parts.loss, parts.train, parts.validation, schedule=schedule, batch_size=16)


def test_a_model_that_reads_what_changes_outside_of_it_trains_alone():
    lanes = [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1}]
    ours, theirs = made(Cooling, lanes), made(Cooling, lanes)
    fuser = Fuser(most=3, fewest=2)
    for _ in range(3):
        told = [one.metrics for one in fuser.step(ours)]
        assert_same([one for one in told if one is not None], [one.step() for one in theirs], ours, theirs)
