"""LARS, LAMB, momentum correction and weight decay against the equations of their papers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hpsearch_comm as comm
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.weight_decay import decay_groups


def gradients(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(steps)]


def start() -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4))


def run(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, steps: int = 5) -> torch.Tensor:
    for gradient in gradients(steps):
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach().clone()


def test_lars_takes_the_steps_of_its_algorithm():
    parameter = start()
    w, v = parameter.detach().clone(), torch.zeros(3, 4, dtype=torch.float64)
    for g in gradients(5):
        local = 0.02 * w.norm() / (g.norm() + 0.1 * w.norm())
        v = 0.9 * v + 0.5 * local * (g + 0.1 * w)
        w = w - v
    assert torch.allclose(run(LARS([parameter], 0.5, 0.9, 0.1, 0.02), parameter), w)


def test_lamb_takes_the_steps_of_its_algorithm():
    parameter = start()
    w = parameter.detach().clone()
    m = v = torch.zeros(3, 4, dtype=torch.float64)
    for t, g in enumerate(gradients(5), 1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        u = (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6) + 0.1 * w
        w = w - 0.03 * w.norm() / u.norm() * u
    assert torch.allclose(run(LAMB([parameter], 0.03, (0.8, 0.95), 1e-6, 0.1), parameter), w)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_layer_of_zeros_gets_away_from_there(make):
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    make([parameter], lr=0.1).step()
    assert (parameter < 0).all()


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_gradient_of_zeros_and_a_missing_one(make):
    still, missing = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    still.grad = torch.zeros(4)
    make([still, missing], lr=0.1).step()
    assert torch.equal(still, torch.ones(4))
    assert torch.equal(missing, torch.ones(4))


def test_groups_that_do_not_adapt_take_plain_steps():
    plain, reference = start(), start()
    lars = LARS([{"params": [plain], "adapt": False}], 0.1, 0.9, 0.01)
    sgd = torch.optim.SGD([reference], 0.1, 0.9, weight_decay=0.01)
    assert torch.allclose(run(lars, plain), run(sgd, reference))
    plain, reference = start(), start()
    lamb = LAMB([{"params": [plain], "adapt": False}], 0.1, eps=1e-8)
    assert torch.allclose(run(lamb, plain), run(torch.optim.Adam([reference], 0.1), reference))


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_saved_state_continues_to_the_bit(make):
    whole, first = start(), start()
    expected = run(make([whole], lr=0.1), whole, 6)
    optimizer = make([first], lr=0.1)
    for number, gradient in enumerate(gradients(6)):
        if number == 3:
            state, optimizer = optimizer.state_dict(), make([first], lr=0.7)
            optimizer.load_state_dict(state)
        first.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(first, expected)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_closure_gives_the_loss(make):
    parameter = nn.Parameter(torch.ones(4))
    optimizer = make([parameter], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    assert float(optimizer.step(closure)) == 4.0
    assert (parameter < 1).all()


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (LARS, {"lr": -1}, "lr of LARS must be at least 0, got -1"),
        (LARS, {"momentum": float("nan")}, "momentum of LARS"),
        (LAMB, {"eps": -1}, "eps of LAMB"),
        (LAMB, {"betas": (0.9, 1.0)}, "betas of LAMB must be from 0 to below 1"),
    ],
)
def test_values_that_can_not_be_used(make, arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        make([nn.Parameter(torch.ones(2))], **arguments)


class FormTen(torch.optim.Optimizer):
    """SGD in form (10): the rate is inside the velocity."""

    rate_in_velocity = True

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                velocity = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                velocity.mul_(group["momentum"]).add_(parameter.grad, alpha=group["lr"])
                parameter.sub_(velocity)


def with_changing_rates(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> torch.Tensor:
    rates = Rates(optimizer)
    for gradient, factor in zip(gradients(6), (1.0, 1.0, 2.0, 3.0, 3.0, 0.5), strict=True):
        rates.apply(factor)
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach().clone()


def test_corrected_momentum_makes_form_ten_equal_form_nine():
    """Goyal et al. 2017, remark 2: torch's SGD is form (9) and needs no correction, form (10) with it is the same."""
    nine, ten, plain = start(), start(), start()
    expected = with_changing_rates(torch.optim.SGD([nine], 0.1, 0.9), nine)
    assert torch.allclose(with_changing_rates(FormTen([ten], 0.1, 0.9), ten), expected)
    uncorrected = FormTen([plain], 0.1, 0.9)
    uncorrected.rate_in_velocity = False
    assert not torch.allclose(with_changing_rates(uncorrected, plain), expected)


def test_rates_of_groups_keep_their_proportion():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.02}])
    rates = Rates(optimizer)
    rates.apply(3.0)
    rates.apply(4.0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4, 0.08])
    rates.restore()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]


def test_a_rate_that_is_a_tensor_stays_the_users():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=rate)
    rates = Rates(optimizer)
    rates.apply(3.0)
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.1) * 3)
    rates.restore()
    assert optimizer.param_groups[0]["lr"] is rate
    rate.fill_(0.2)
    rates.apply(3.0)
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.2) * 3)


def test_a_rate_that_other_optimizers_have_too_is_scaled_for_one_alone():
    common = torch.tensor(0.1)
    first, second = ([{"params": [nn.Parameter(torch.ones(2))]} for _ in range(2)] for _ in range(2))
    optimizers = [torch.optim.Adam(groups, lr=common) for groups in (first, second)]
    Rates(optimizers[0]).apply(3.0)
    Rates(optimizers[1]).apply(2.0)
    found = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]
    assert found == [pytest.approx([0.3, 0.3]), pytest.approx([0.2, 0.2])]
    assert float(common) == pytest.approx(0.1)


def test_scales_and_shifts_of_normalisations_do_not_decay():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(4), nn.Linear(4, 2), nn.RMSNorm(2)
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, plain = decay_groups(model, 1e-4)
    assert [names[id(parameter)] for parameter in decaying["params"]] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert (decaying["weight_decay"], plain["weight_decay"], plain["adapt"]) == (1e-4, 0.0, False)
    assert len(plain["params"]) == 7
    decaying, plain = decay_groups(model, 1e-4, biases=False)
    assert [names[id(parameter)] for parameter in decaying["params"]] == ["0.weight", "4.weight"]
    assert len(plain["params"]) == 9


class Conditional(nn.LayerNorm):
    """A normalization with a layer inside."""

    def __init__(self) -> None:
        super().__init__(4)
        self.inner = nn.Linear(2, 4)


def test_a_layer_inside_a_normalization_decays():
    model = Conditional()
    decaying, plain = decay_groups(model, 1e-4)
    assert [id(value) for value in decaying["params"]] == [id(model.inner.weight), id(model.inner.bias)]
    assert len(plain["params"]) == 2


def test_synchronized_normalisation_does_not_decay_either():
    with comm.Group(0, 1) as group:
        model = nn.Sequential(comm.SyncBatchNorm(2, group=group))
        decaying, plain = decay_groups(model, 1e-4)
    assert (len(decaying["params"]), len(plain["params"])) == (0, 2)


def test_shared_and_frozen_parameters_and_attention():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.MultiheadAttention(4, 2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    decaying, plain = decay_groups(model, 1e-4, biases=False)
    assert len(decaying["params"]) == 3, "the shared weight and two projections"
    assert len(plain["params"]) == 3, "a bias, and two of the attention's"
    torch.optim.SGD([decaying, plain], lr=0.1)


LAYERS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "Linear": (lambda: nn.Linear(2, 2), {"weight"}),
    "Bilinear": (lambda: nn.Bilinear(2, 2, 2), {"weight"}),
    "LazyLinear": (lambda: nn.LazyLinear(2), {"weight"}),
    "Conv2d": (lambda: nn.Conv2d(1, 1, 2), {"weight"}),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(1, 1, 2), {"weight"}),
    "Embedding": (lambda: nn.Embedding(2, 2), {"weight"}),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(2, 2), {"weight"}),
    "PReLU": (nn.PReLU, {"weight"}),
    "RNN": (lambda: nn.RNN(2, 2, num_layers=2, bidirectional=True), {"weight"}),
    "LSTM": (lambda: nn.LSTM(2, 3, bidirectional=True, proj_size=2), {"weight"}),
    "GRU": (lambda: nn.GRU(2, 2, num_layers=2), {"weight"}),
    "RNNCell": (lambda: nn.RNNCell(2, 2), {"weight"}),
    "LSTMCell": (lambda: nn.LSTMCell(2, 2), {"weight"}),
    "GRUCell": (lambda: nn.GRUCell(2, 2), {"weight"}),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(2, 1, add_bias_kv=True), {"weight"}),
    "MultiheadAttention of other sizes": (lambda: nn.MultiheadAttention(2, 1, kdim=3, vdim=3), {"weight"}),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(2, 1, 2), {"weight"}),
    "AdaptiveLogSoftmaxWithLoss": (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2], head_bias=True), {"weight"}),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(2), set()),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(2), set()),
    "LazyBatchNorm2d": (nn.LazyBatchNorm2d, set()),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(2, affine=True), set()),
    "LayerNorm": (lambda: nn.LayerNorm(2), set()),
    "GroupNorm": (lambda: nn.GroupNorm(1, 2), set()),
    "RMSNorm": (lambda: nn.RMSNorm(2), set()),
}
"""By class: one of its kind, and which of its parameters' kinds decay when biases don't."""

SAME = {
    *("Conv1d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d", "RNNBase", "RNNCellBase"),
    *("BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm3d"),
}
"""Modules whose parameters have the names of those above."""


@pytest.mark.parametrize("kind", LAYERS)
def test_no_bias_of_torchs_modules_decays(kind):
    make, kinds = LAYERS[kind]
    model = make()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying = {names[id(parameter)] for parameter in decay_groups(model, 1e-4, biases=False)[0]["params"]}
    norms = tuple(name for name, layer in model.named_modules() if name and isinstance(layer, nn.LayerNorm))
    expected = {
        name for name in names.values() if kinds and "bias" not in name and not (norms and name.startswith(norms))
    }
    assert decaying == expected


@pytest.mark.exhaustive
def test_every_module_of_torch_that_makes_parameters_is_among_them():
    makers = {
        name
        for name, cls in vars(nn).items()
        if isinstance(cls, type) and issubclass(cls, nn.Module) and cls is not nn.Module
        if any("Parameter(" in inspect.getsource(base) for base in cls.__mro__[: cls.__mro__.index(nn.Module)])
    }
    lazy_or_holders = {name for name in makers if name.startswith(("Lazy", "Parameter"))}
    assert makers - lazy_or_holders <= SAME | LAYERS.keys()
    assert {"MultiheadAttention", "LSTM", "Conv3d", "RMSNorm"} < makers


def test_parameters_in_lists_and_parametrized_ones_are_what_their_owner_names_them():
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.biases = nn.ParameterList([nn.Parameter(torch.ones(2))])
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(2))])
            self.named = nn.ParameterDict({"bias": nn.Parameter(torch.ones(2))})
            self.bias_net = nn.Linear(2, 2)
            self.unbiased = nn.Parameter(torch.ones(2))
            self.norm = nn.LayerNorm(2)

    model = Owner()
    for layer, name in ((model.bias_net, "bias"), (model.norm, "weight")):
        parametrize.register_parametrization(layer, name, nn.Identity())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, _ = decay_groups(model, 1e-4, biases=False)
    assert sorted(names[id(p)] for p in decaying["params"]) == ["bias_net.weight", "scales.0", "unbiased"]
    decaying, _ = decay_groups(model, 1e-4)
    assert not any(names[id(p)].startswith("norm.") for p in decaying["params"])
