"""What a way to train one model on several ranks has to say; the loop around it is the `Trainer`'s."""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hpsearch_comm import Group, SyncBatchNorm
from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import differing
from hpsearch_trainers.moving_average import MovingAverage
from hpsearch_trainers.nearest import nearest
from hpsearch_trainers.optimizers import check_parameters, clippable, parameters_of
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import Shard


@dataclass(frozen=True, slots=True)
class Options:
    """The `parallel` of a trial."""

    strategy: str = "allreduce"
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """All other keys; those of other strategies may be among them, where the sweep searches over strategies."""

    @classmethod
    def from_dict(cls, parallel: Mapping[str, Any]) -> Options:
        """Read what a trial names; None stands for a key that is left out."""
        values = {key: value for key, value in parallel.items() if value is not None}
        return cls(values.pop("strategy", "allreduce"), MappingProxyType(values))

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            ConfigurationError: It is something else, or less than `least`.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"parallel.{key} must be a whole number of at least {least}, got {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return a word, by default the first of those that are known.

        Raises:
            ConfigurationError: It is none of them.
        """
        value = self.values.get(key, choices[0])
        if value not in choices:
            hint = nearest(value, choices)
            raise ConfigurationError(f"parallel.{key} must be one of {', '.join(choices)}, got {value!r}{hint}")
        return str(value)


_ADVICE = (
    "Build it, and change it between two epochs, in the same way on all ranks, by values that all of them have, such "
    "as the metrics of super().step()"
)


def check_same_training(
    model: nn.Module, optimizer: Optimizer, epoch: int, group: Group, *, rates: bool, states: bool
) -> None:
    """Check that all ranks train the same parameters with the same settings in the same epoch; a collective.

    Args:
        model: What is trained.
        optimizer: It trains them.
        epoch: Its number.
        group: The ranks.
        rates: Whether they have the same rates.
        states: Whether the optimizer of each has a state of all parameters.

    Raises:
        MismatchError: They don't; raised on all ranks.
    """
    lines = [f"epoch {epoch}", *describe_layouts(model.named_parameters())]
    names = {parameter: name for name, parameter in model.named_parameters()}
    for number, param_group in enumerate(optimizer.param_groups):
        lines.append(
            f"group {number} of the optimizer with {', '.join(_settings(optimizer, param_group, rates=rates))}"
        )
        for parameter in param_group["params"]:
            entries = _state_entries(optimizer, parameter) if states else ""
            lines.append(f"parameter {names.get(parameter, 'of another model')} in group {number}{entries}")
    check_agreement(group, "what is trained", lines, _ADVICE)


def _settings(optimizer: Optimizer, param_group: Mapping[str, Any], *, rates: bool) -> Iterator[str]:
    if rates:
        yield f"lr {float(param_group['lr'])}"
    if _is_from_torch(optimizer):
        yield from (
            f"{name} {param_group[name]}" for name in optimizer.defaults if name != "lr" and name in param_group
        )


def _state_entries(optimizer: Optimizer, parameter: nn.Parameter) -> str:
    if not _is_from_torch(optimizer):
        return ""
    return f" with {', '.join(sorted(optimizer.state.get(parameter, ()))) or 'no state'}"


def _is_from_torch(optimizer: Optimizer) -> bool:
    """Return whether it is one of torch's: others may keep what each rank counts for itself."""
    return type(optimizer).__module__.startswith("torch.optim.")


NO_FLOAT16 = {"float16": 'it doesn\'t scale losses. Take precision="bf16", or the strategy allreduce'}
"""A part of `refuses`: ranks that step by themselves would each leave out steps of their own."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a strategy trains. Nothing in it leads back to the trainer, whose memory is then free when it goes."""

    model: nn.Module
    """The same on every rank."""
    optimizer: Optimizer
    """Of its parameters."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Makes the context of a forward pass."""
    clip_norm: float | None = None
    """Norm above which the gradient of a step is scaled down to it."""
    average: MovingAverage | None = None
    """The moving average of the model, which the loop updates after each step."""
    scaler: torch.amp.GradScaler | None = None
    """Scales the loss where forward passes are in float16."""


class Strategy:
    """How the ranks of a group train one model; this one is of a rank by itself: a gradient, then a step.

    A `Trainer` makes one on every rank, calls `check`, makes the optimizer, calls `bind`, and then for each epoch:

        agree → start_epoch → (start_step → backward, once or more → update) for each of shares → end_epoch
        → validation, state

    or, on a rank that doesn't train, `agree → start_epoch → serve → end_epoch`. An epoch that fails ends with
    `abort`.

    Args:
        options: The trial's `parallel`.
        group: All ranks of the trial, two or more; None for one.

    Attributes:
        group: All of them.
        workers: Those that train, over which metrics, buffers and statistics are summed up; None for one.
        trains: Whether this rank does.
        formed: Groups that it has made of some of the ranks.
        passes: Backward passes into which each of the trainer's is divided.
        calls: How often each of the trainer's `METHODS` has been called, but for overrides; steps that have ended.
        has_state: Whether the trainer's state that was given or taken up last had what this strategy keeps.

    Raises:
        ConfigurationError: An option can't be used, or not with so many ranks.
    """

    name: ClassVar[str] = "alone"
    """As in a sweep's `parallel.strategy`."""
    least: ClassVar[int] = 1
    """Ranks that it takes, at least."""
    reproducible: ClassVar[bool] = True
    """The same trial gives the same numbers once more."""
    exact: ClassVar[bool] = True
    """Trains as one rank does with the same global batch, but for rounding."""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What can't be used with it, and why: values of `Parts`, and what else a strategy finds in a model."""
    same_states: ClassVar[bool] = False
    """Each rank's optimizer has the same state, of all parameters."""
    own_loop: ClassVar[bool] = False
    """A user's `step` may have a loop of its own, which says itself what the ranks exchange."""
    rate_rule: ClassVar[str | None] = None
    """By which rule of `scaling` the rate follows the global batch where a sweep names none; None: the optimizer's."""

    def __init__(self, options: Options, group: Group | None) -> None:
        self.group = group
        self.workers = group
        self.trains = True
        self.formed: list[Group] = []
        self.passes = 1
        self.calls: Counter[str] = Counter()
        self.has_state = False
        self._under_way = False
        self._watch: RemovableHandle | None = None
        size = 1 if group is None else group.size
        if size < self.least:
            raise ConfigurationError(
                f"parallel.strategy {self.name} takes {self.least} workers or more, got {size}: raise "
                "resources.workers_per_trial"
            )

    @property
    def parts(self) -> int:
        """Return into how many parts a global batch is divided."""
        return 1 if self.workers is None else self.workers.size

    @property
    def part_index(self) -> int:
        """Return which of them is this rank's; 0 on one that doesn't train."""
        return 0 if self.workers is None else self.workers.rank

    @property
    def is_main_rank(self) -> bool:
        """Return whether this rank is the one that prints for all."""
        return self.group is None or self.group.rank == 0

    @property
    def may_be_left_out(self) -> bool:
        """Return whether weights may change outside its epochs without a word to the other ranks."""
        return self.group is None or self.own_loop

    def needs(self, name: str) -> bool:
        """Return whether a trainer's override must call one of `METHODS`: to train by it, or to keep what it keeps."""
        if name == "step":
            return not self.may_be_left_out
        return type(self).state_dict is not Strategy.state_dict

    @property
    def hooked(self) -> bool:
        """Return whether a step of the optimizer runs something of the user's, too."""
        optimizer = self.trained.optimizer
        hooks = (*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values())
        return any(getattr(hook, "func", None) is not _check_under_way for hook in hooks)

    @property
    def stream(self) -> int:
        """Return the number of the random numbers that this rank draws from: those with one number draw the same."""
        return self.part_index

    def check(self, parts: Parts) -> None:
        """Look at what is to be trained, and how.

        Raises:
            ConfigurationError: It has what the strategy refuses.
        """
        for part in fields(parts):
            if part.name in self.refuses and getattr(parts, part.name) != part.default:
                self.refuse(part.name)
        if parts.autocast is torch.float16 and "float16" in self.refuses:
            self.refuse("float16")

    def refuse(self, feature: str, detail: str = "") -> NoReturn:
        """Raise the reason why something can't be used.

        Args:
            feature: One of `refuses`.
            detail: It was found, if that isn't clear.

        Raises:
            ConfigurationError: Always.
        """
        reason = self.refuses[feature] if not detail else f"{self.refuses[feature]}; here {detail}"
        raise ConfigurationError(f"parallel.strategy {self.name} can't be used with {feature}: {reason}")

    def bind(self, trained: Trained) -> None:
        """Take what is trained, at first and where the user has put something else in its place; a collective.

        Raises:
            ConfigurationError: It can't be trained so.
        """
        check_parameters(trained.optimizer, trained.model)
        self.trained = trained
        self._bound_objects = _objects_of(trained)
        of_optimizer = {id(parameter) for parameter in parameters_of(trained.optimizer)}
        self._untrained = [parameter for parameter in trained.model.parameters() if id(parameter) not in of_optimizer]
        if self._watch is not None:
            self._watch.remove()
        if not self.may_be_left_out:
            # By a weak reference, as a circle would keep models until Python's collector comes by.
            self._watch = trained.optimizer.register_step_pre_hook(partial(_check_under_way, weakref.ref(self)))

    def is_bound(self, trained: Trained) -> bool:
        """Return whether model, layers, optimizer and parameters are still those that `bind` got."""
        objects = _objects_of(trained)
        return len(objects) == len(self._bound_objects) and all(map(operator.is_, objects, self._bound_objects))

    def loaded(self) -> None:
        """Handle a new state of model and optimizer, the same on every rank; a collective."""

    def agree(self, trained: Trained, epoch: int) -> None:
        """Check that all ranks have made the same changes since the last epoch; a collective, before `start_epoch`.

        Raises:
            MismatchError: They haven't.
        """
        if self.group is not None:
            # Those that step by themselves have set their rates last at a step of their own.
            options = {"rates": self.reproducible, "states": self.same_states}
            check_same_training(trained.model, trained.optimizer, epoch, self.group, **options)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch, with rank 0's weights and buffers; a collective.

        Args:
            trained: What `bind` got, or what the user has put in its place since, which is bound now.
            epoch: Epochs that are done.
        """
        if not self.is_bound(trained):
            self.bind(trained)
        if self.group is not None:
            # What a user has drawn anew, each rank has drawn for itself.
            broadcast_tensors(differing(_tensors_of(trained), self.group), self.group)
        self.trained = trained
        self._under_way = True

    def epoch_steps(self, shard: Shard, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of each step of an epoch and this rank's rows; taken one by one as they are trained.

        Args:
            shard: This rank's.
            epoch: Its number, from 0.
        """
        yield from enumerate(shard.epoch(epoch))

    def start_step(self, rows: int) -> None:
        """Begin a step.

        Args:
            rows: Of the global batch, that are this rank's; 0 where there are too few, and its pass counts for nothing.
        """
        self.trained.optimizer.zero_grad()
        for parameter in self._untrained:  # else a measure of its gradient would depend on when the training went on
            parameter.grad = None

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Compute a loss and add its gradient.

        Args:
            inputs: Of some rows.
            loss_of: Gives the mean loss of the model's output for them.
            loss_weight: What the rows are of the step's on this rank.
            last: No more of this step follow.

        Returns:
            The mean loss, without its graph. Summed up over the passes and over the workers, each times its rows, it
            is what the step's loss is made of; so a pass may tell of others, and a worker tell nothing.
        """
        with self.trained.autocast():
            loss = loss_of(self.trained.model(inputs))
        scaled = loss if loss_weight == 1.0 else loss * loss_weight
        if self.trained.scaler is not None:
            scaled = self.trained.scaler.scale(scaled)
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Step: from gradients to weights."""
        if self.trained.scaler is not None:
            self.trained.scaler.unscale_(self.trained.optimizer)
        if self.trained.clip_norm is not None:
            # What the optimizer doesn't train may have gradients, too.
            nn.utils.clip_grad_norm_(clippable(parameters_of(self.trained.optimizer)), self.trained.clip_norm)
        self.step()

    def step(self) -> None:
        """Step the optimizer."""
        if self.trained.scaler is None:
            self.trained.optimizer.step()
        else:
            self.trained.scaler.step(self.trained.optimizer)
            self.trained.scaler.update()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """Work for the others for an epoch, on a rank that doesn't train.

        Args:
            steps: Those of the epoch.
            set_rate: Gives this rank's optimizer the rate of a step, from 0.
        """
        raise NotImplementedError

    def end_epoch(self) -> None:
        """Bring model and optimizer to the state that is validated and saved, on every rank; a collective."""
        self._under_way = False
        self.calls["step"] += 1

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """Return the metrics of an epoch, the same on every rank; a collective.

        Args:
            metrics: Those of the ranks that train; None on others.
        """
        assert metrics is not None
        return dict(metrics)

    def entry(self) -> dict[str, Any]:
        """Return what a trainer's state has of the strategy, under `strategy`; nothing where it keeps nothing."""
        state = self.state_dict()
        self.has_state = bool(state)
        return {"strategy": {"name": self.name, **state}} if state else {}

    def load_entry(self, state: Mapping[str, Any]) -> None:
        """Go on from what a trainer's state has of the strategy, if there is something."""
        entry = state.get("strategy", {})
        self.has_state = entry.get("name") == self.name
        self.load_state_dict(entry if self.has_state else {})

    def state_dict(self) -> dict[str, Any]:
        """Return what more continues the training with this strategy, the same on every rank; empty where nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it; empty where the state was saved with another strategy."""

    def abort(self, error: BaseException) -> None:
        """Tell the ranks that may be waiting for this one that its epoch has failed; those of `group` the caller tells.

        Args:
            error: Why.
        """
        layers = self.trained.model.modules()
        of_layers = [layer.group for layer in layers if isinstance(layer, SyncBatchNorm)]
        for group in (*self.formed, *of_layers):
            group.close(error)


def _check_under_way(strategy: weakref.ref[Strategy], *_: object) -> None:
    """Raise where an optimizer steps outside an epoch of its strategy."""
    owner = strategy()
    if owner is not None and not owner._under_way:
        raise ConfigurationError(
            f"under parallel.strategy {owner.name} the optimizer of a Trainer must step in the epochs of Trainer.step "
            "alone, got a step outside of one, which the other ranks don't see: call super().step() instead of a "
            "loop of your own, which belongs in a class that isn't a Trainer, and says what ranks exchange"
        )


def _tensors_of(trained: Trained) -> list[Tensor]:
    models = [trained.model, *([] if trained.average is None else [trained.average])]
    return [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]


def _objects_of(trained: Trained) -> list[object]:
    """Return what a strategy may have taken note of; a None ends each group of parameters."""
    groups = trained.optimizer.param_groups
    in_groups = [parameter for group in groups for parameter in (*group["params"], None)]
    return [trained.optimizer, *trained.model.modules(), *trained.model.parameters(), *in_groups]
