"""What isn't in a lane's contract runs alone with its own reason, whichever trials came before it, or beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.optimizer import register_optimizer_step_post_hook

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, RoundingFuser
from tests.trainers.lanes.networks import Drawn, assert_same, made

NOT_TORCHS = "isn't one of torch.optim's own classes, LARS or LAMB"
HOOKED = "its optimizer has hooks"


class Freezing(torch.optim.SGD):
    """Freezes the first parameter in its third step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 3:
            self.param_groups[0]["params"][0].requires_grad_(False)
        return super().step(closure)


class Remembering(torch.optim.SGD):
    """Keeps its parameters in its state, as they are in memory, and draws them to where they were."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                kept = self.state[parameter].setdefault("alias", parameter.detach())
                parameter.mul_(0.99).add_(kept, alpha=0.01)
        return super().step(closure)


class Lookahead(torch.optim.SGD):
    """Every third step, goes half of the way back to where it was (Zhang et al. 2019)."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        if self.steps == 0:
            self.slow = [one.detach().clone() for one in parameters]
        found = super().step(closure)
        self.steps += 1
        if self.steps % 3 == 0:
            self.slow = [slow + 0.5 * (fast.data - slow) for slow, fast in zip(self.slow, parameters, strict=True)]
            for parameter, slow in zip(parameters, self.slow, strict=True):
                parameter.data = slow.clone()
        return found


def clipped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Clip weights, as in Arjovsky et al. 2017."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data = parameter.data.clamp(-0.05, 0.05)


def by_vector(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = optimizer.param_groups[0]["params"]
    vector_to_parameters(0.9 * parameters_to_vector(parameters), parameters)


def with_step_hook(hook: Callable[..., None]) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        assert isinstance(parts.optimizer, torch.optim.Optimizer)
        parts.optimizer.register_step_post_hook(hook)
        return parts

    return change


def with_optimizer(kind: type[torch.optim.Optimizer]) -> Callable[[Parts], Parts]:
    return lambda parts: dataclasses.replace(parts, optimizer=kind(parts.model.parameters(), lr=0.1))  # type: ignore[call-arg]


def with_own_step(parts: Parts) -> Parts:
    optimizer: Any = parts.optimizer
    own = optimizer.step

    def step(*given: Any) -> Any:
        clipped(optimizer)
        return own(*given)

    optimizer.step = step
    return parts


def with_forward_hook(parts: Parts) -> Parts:
    parts.model.register_forward_hook(lambda _, given, output: output * 0.5)
    return parts


def with_backward_hook(parts: Parts) -> Parts:
    def halved(module: nn.Module, given: Any, coming: Any) -> Any:
        return tuple(one * 0.5 for one in given)

    [*parts.model.children()][-1].register_full_backward_hook(halved)
    return parts


def with_gradient_hook(parts: Parts) -> Parts:
    next(parts.model.parameters()).register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return parts


def with_accumulation_hook(parts: Parts) -> Parts:
    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    next(parts.model.parameters()).register_post_accumulate_grad_hook(halve)  # type: ignore[no-untyped-call]
    return parts


def with_hooked_loss(parts: Parts) -> Parts:
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(lambda _, given, output: output * 0.5)
    return dataclasses.replace(parts, loss=loss)


WITH: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "weight clipping": (with_step_hook(clipped), HOOKED),
    "vector to parameters": (with_step_hook(by_vector), HOOKED),
    "lookahead": (with_optimizer(Lookahead), NOT_TORCHS),
    "freezing in a step": (with_optimizer(Freezing), NOT_TORCHS),
    "parameters in its state": (with_optimizer(Remembering), NOT_TORCHS),
    "a scheduler": (lambda parts: parts, "its optimizer's step is replaced"),
    "a step of its own": (with_own_step, "its optimizer's step is replaced"),
    "forward hook": (with_forward_hook, "its model has hooks"),
    "backward hook": (with_backward_hook, "its model.3 has hooks"),
    "hook of a gradient": (with_gradient_hook, "0.weight has hooks"),
    "hook of an accumulated gradient": (with_accumulation_hook, "0.weight has hooks"),
    "hook of a loss": (with_hooked_loss, "its loss has hooks"),
    "a scaled loss": (lambda parts: dataclasses.replace(parts, precision="fp16"), "it scales its loss"),
}


class Changed(Drawn):
    def build(self, params):
        parts: Parts = super().build({"layers": ["relu"], "optimizer": "sgd", "batch_size": 16})  # type: ignore[no-untyped-call]
        if params.get("with") == "a scheduler":
            assert isinstance(parts.optimizer, torch.optim.Optimizer)
            self.scheduler = torch.optim.lr_scheduler.StepLR(parts.optimizer, 1)
        return WITH[params["with"]][0](parts) if "with" in params else parts


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("first", ["plain", "it"])
@pytest.mark.parametrize("name", WITH)
def test_optimizers_and_hooks_of_ones_own_run_alone_whoever_comes_first(name, first):
    lanes: list[dict[str, Any]] = [{}, {}, {"with": name}, {"with": name}]
    ours, theirs = made(Changed, lanes), made(Changed, lanes)
    order = [0, 1, 2, 3] if first == "plain" else [2, 3, 0, 1]
    fuser = Fuser(fewest=2)
    for present in (order[:2], order, order):
        stepped = dict(zip(present, fuser.step([ours[number] for number in present]), strict=True))
        for number, one in stepped.items():
            assert_same([one.metrics], [theirs[number].step()], [ours[number]], [theirs[number]])
            if number < 2:
                assert (one.lanes, one.alone_because) == (2, None)
            else:
                assert one.lanes == 1
                assert WITH[name][1] in str(one.alone_because)


@pytest.mark.parametrize("name", ["weight clipping", "lookahead", "hook of a gradient"])
def test_they_run_alone_where_lanes_may_round_too(name):
    ours, theirs = made(Changed, [{"with": name}]), made(Changed, [{"with": name}])
    fuser = RoundingFuser(3)
    for _ in range(2):
        (stepped,) = fuser.step(ours)
        assert WITH[name][1] in str(stepped.alone_because)
        assert_same([stepped.metrics], [theirs[0].step()], ours, theirs)


def test_hooks_of_all_modules_and_of_all_optimizers_make_all_run_alone():
    ways: list[tuple[Any, str]] = [
        (lambda: nn.modules.module.register_module_forward_hook(lambda _, given, output: output * 0.5), "all modules"),
        (lambda: register_optimizer_step_post_hook(clipped), HOOKED),
    ]
    for register, reason in ways:
        ours, theirs = made(Changed, [{}, {}]), made(Changed, [{}, {}])
        fuser, handle = Fuser(fewest=2), register()
        try:
            stepped = fuser.step(ours)
            assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
        finally:
            handle.remove()
        assert [reason in str(one.alone_because) for one in stepped] == [True, True]
        assert [one.lanes for one in fuser.step(ours)] == [2, 2]


class Calling(Drawn):
    """What its functions do is in its parameters; `self` is its own trainer."""

    def build(self, params):
        parts: Parts = super().build({"layers": ["relu"], "batch_size": 16})  # type: ignore[no-untyped-call]
        functions = {name: function(self) for name, function in params.get("functions", {}).items()}
        return dataclasses.replace(parts, **functions)


def counting(trainer: Any) -> Callable[[float], float]:
    """Make a schedule with a memory of its own."""
    calls: Iterator[int] = iter(range(10**6))
    return lambda epoch: 1 / (1 + 0.1 * next(calls))


def clipping(trainer: Any) -> Callable[[float], float]:
    """Make a schedule that puts the parameters into other memory, from its third epoch on, which no try comes to."""

    def schedule(epoch: float) -> float:
        if epoch >= 2.5:
            for parameter in trainer.model.parameters():
                parameter.data = parameter.data.clamp(-0.3, 0.3)
        return 1.0

    return schedule


def decaying(trainer: Any) -> Callable[[float], float]:
    return lambda epoch: 0.5**epoch


def drawing(trainer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: functional.cross_entropy(output, target) * (1 + torch.rand(()))


def penalized(trainer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: (
        functional.cross_entropy(output, target) + 0.1 * sum(one.square().sum() for one in trainer.model.parameters())
    )


def smoothed(trainer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: functional.cross_entropy(output, target, label_smoothing=0.1)


REASONS = {
    counting: "comes to something else the next time",
    clipping: "put into other memory",
    drawing: "draws from the process's random generators",
    penalized: "its loss comes to its model's parameters",
}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "pair", [(decaying, counting), (decaying, clipping), (smoothed, drawing), (smoothed, penalized)]
)
def test_trials_that_differ_in_their_functions_have_their_own_verdicts_in_any_order(pair, turned):
    name = "schedule" if pair[0] is decaying else "loss"
    functions = [function for function in pair for _ in range(2)]
    functions = functions[::-1] if turned else functions
    lanes = [{"functions": {name: function}} for function in functions]
    ours, theirs = made(Calling, lanes), made(Calling, lanes)
    fuser = Fuser(fewest=2)
    for epoch in range(4):
        stepped = fuser.step(ours)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
        for function, one in zip(functions, stepped, strict=True):
            reason = REASONS.get(function, "")
            if not reason or (function is clipping and epoch < 2):
                assert one.alone_because is None
                assert one.lanes > 1
            else:
                assert reason in str(one.alone_because)


def test_nothing_of_the_users_goes_on_when_a_shape_is_tried():
    """Each has counted as often as alone, wherever it counts."""
    counts: dict[int, dict[str, int]] = {}

    def counted(name: str, function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
        def of(trainer: Any) -> Callable[..., Any]:
            own = counts.setdefault(id(trainer), {})

            def call(*given: Any) -> Any:
                own[name] = own.get(name, 0) + 1
                return function(*given)

            return call

        return of

    functions = {
        "schedule": counted("schedule", lambda epoch: 1 / (1 + epoch)),
        "loss": counted("loss", lambda output, target: functional.cross_entropy(output, target)),
        "metrics": lambda trainer: {"one": counted("metric", lambda output, target: output.sum(1))(trainer)},
        "measures": lambda trainer: {"two": counted("measure", lambda model: 2.0)(trainer)},
    }
    lanes = [{"functions": functions}] * 3
    ours, theirs = made(Calling, lanes), made(Calling, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(2):
        stepped = fuser.step(ours)
        assert [(one.lanes, one.alone_because) for one in stepped] == [(3, None)] * 3
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
    assert [counts[id(one)] for one in ours] == [counts[id(one)] for one in theirs]


class Own(Drawn):
    """Its constructor reads what only a real trial has."""

    def __init__(self, trial: Any) -> None:
        self.name = trial.name
        super().__init__(trial)

    def build(self, params):
        return super().build({"layers": ["relu"]})  # type: ignore[no-untyped-call]


def test_what_cannot_be_built_once_more_runs_alone_and_says_why():
    @dataclasses.dataclass
    class Named:
        params: dict[str, Any]
        seed: int
        name: str = "a name"

    ours, theirs = ([Own(Named({}, seed)) for seed in range(2)] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        other.load_state_dict(one.state_dict())
    stepped = Fuser(fewest=2).step(ours)
    assert ["AttributeError" in str(one.alone_because) for one in stepped] == [True, True]
    assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
