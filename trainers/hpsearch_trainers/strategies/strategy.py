"""The base class of strategies for training one model on several ranks. The training loop is in `Trainer`."""

from __future__ import annotations

import operator
import weakref
from abc import ABC, abstractmethod
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

from hpsearch_comm import Group, SyncBatchNorm, broadcast_parameters
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
    """A trial's value of the sweep key `parallel`: its strategy and that strategy's own keys."""

    strategy: str = "allreduce"
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """All other keys. They may include keys of other strategies, if the sweep searches over strategies."""

    @classmethod
    def from_dict(cls, parallel: Mapping[str, Any]) -> Options:
        """Return the options in a trial's `parallel`. A key with the value None counts as missing."""
        values = {key: value for key, value in parallel.items() if value is not None}
        return cls(values.pop("strategy", "allreduce"), MappingProxyType(values))

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return an integer option.

        Raises:
            ConfigurationError: The value isn't an integer, or is less than `least`.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"parallel.{key} must be a whole number of at least {least}, got {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return an option that is one of `choices`; the default is the first.

        Raises:
            ConfigurationError: The value isn't one of `choices`.
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
        model: The model.
        optimizer: Its optimizer.
        epoch: Index of the epoch.
        group: The ranks.
        rates: Whether to check that the learning rates are equal.
        states: Whether to check that each parameter has the same entries in the optimizer's state.

    Raises:
        MismatchError: The ranks differ; raised on all ranks.
    """
    lines = [f"epoch {epoch}", *describe_layouts(model.named_parameters())]
    names = {parameter: name for name, parameter in model.named_parameters()}
    # Another optimizer than torch's may have settings and state that differ between ranks.
    is_from_torch = type(optimizer).__module__.startswith("torch.optim.")
    for number, param_group in enumerate(optimizer.param_groups):
        compared = [name for name in optimizer.defaults if is_from_torch and name != "lr" and name in param_group]
        settings = [f"lr {float(param_group['lr'])}"] if rates else []
        settings += [f"{name} {param_group[name]}" for name in compared]
        lines.append(f"group {number} of the optimizer with {', '.join(settings)}")
        for parameter in param_group["params"]:
            line = f"parameter {names.get(parameter, 'of another model')} in group {number}"
            if states and is_from_torch:
                line += f" with {', '.join(sorted(optimizer.state.get(parameter, ()))) or 'no state'}"
            lines.append(line)
    check_agreement(group, "what is trained", lines, _ADVICE)


NO_FLOAT16 = {"float16": 'it doesn\'t scale losses. Take precision="bf16", or the strategy allreduce'}
"""An entry of `refuses` for strategies with independent steps: each rank would skip different steps on overflow."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The model and optimizer that a strategy trains. It has no reference to the trainer, to avoid a cycle."""

    model: nn.Module
    """The model; it has the same structure on every rank."""
    optimizer: Optimizer
    """The optimizer of the model's parameters."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Returns the context manager of a forward pass."""
    clip_norm: float | None = None
    """Maximum norm of the gradient of a step."""
    average: MovingAverage | None = None
    """The moving average of the model, which the training loop updates after each step."""
    scaler: torch.amp.GradScaler | None = None
    """Scales the loss if forward passes are in float16."""


@dataclass(frozen=True, slots=True)
class StrategyCapabilities:
    """What a strategy can do."""

    reproducible: bool = True
    """Whether repeating a trial gives the same results."""
    exact: bool = True
    """Whether training equals that of one rank with the same global batch, up to rounding."""
    same_states: bool = False
    """Whether every rank's optimizer has the same state, of all parameters."""
    own_loop: bool = False
    """Whether a user's `step` may have its own training loop, which exchanges data between the ranks itself."""
    rate_rule: str | None = None
    """Default rule of `scaling.lr`; None: the optimizer's rule."""
    refuses: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Unsupported features with the reason: fields of `Parts`, and other features that the strategy checks."""


class Strategy(ABC):
    """How the ranks of a group train one model.

    A strategy defines `step` and `end_epoch`, and, if it needs more than rank 0's weights to begin with or has a state
    of its own, `prepare`, `state_dict` and `load_state_dict`. All other methods have defaults.

    A `Trainer` creates a strategy on every rank and calls `check`. It then creates the optimizer and calls `bind`. For
    each epoch it calls:

        start_epoch → (start_step → backward, once or more → step) for each of epoch_steps → finish_epoch
        → validation → synchronize_metrics, state_dict

    or, on a rank that doesn't train, `start_epoch → serve → finish_epoch → synchronize_metrics`. If an epoch fails, it
    calls `abort`.

    Args:
        options: The trial's `parallel`.
        group: All ranks of the trial, two or more; None for a single rank.

    Attributes:
        group: All ranks; None for a single rank.
        is_main_rank: Whether this is rank 0, which prints messages.
        workers: The ranks that train; metrics and buffers are averaged over them. None for a single one.
        trains: Whether this rank trains.
        parts: The number of parts into which a global batch is divided.
        part_index: The index of this rank's part; 0 on a rank that doesn't train.
        stream: The index of this rank's random stream. Ranks with the same index draw the same random numbers.
        passes: Number of backward passes into which each of the trainer's passes is divided.
        formed: Groups of some of the ranks that this strategy has formed.
        trained: The model and optimizer.
        rows: This rank's rows of the current step. If there are too few, it is 0, and the pass doesn't count.
        epochs: Number of epochs of the trial that were trained by this strategy, or that a loaded state contains.

    Raises:
        ConfigurationError: An option can't be used.
    """

    name: ClassVar[str]
    """Name in a sweep's `parallel.strategy`."""
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities()
    trained: Trained

    def __init__(self, options: Options, group: Group | None) -> None:
        self.group = self.workers = group
        self.trains = True
        self.parts, self.part_index = (1, 0) if group is None else (group.size, group.rank)
        self.is_main_rank = self.part_index == 0
        self.stream = self.part_index
        self.passes = 1
        self.formed: list[Group] = []
        self.rows = self.epochs = 0
        self._under_way = False
        self._watch: RemovableHandle | None = None

    # What a strategy defines.

    def prepare(self, trained: Trained) -> None:
        """Prepare the training of a model, at first and whenever the user has replaced something; a collective.

        By default rank 0's weights and buffers are broadcast.

        Args:
            trained: The model and optimizer. `self.trained` is still the previous one, and is missing at first.

        Raises:
            ConfigurationError: The strategy can't train them.
            MismatchError: The ranks have built different models.
        """
        if self.group is not None:
            broadcast_parameters([*trained.model.named_parameters(), *trained.model.named_buffers()], self.group)

    @abstractmethod
    def step(self) -> None:
        """Update the weights from the gradients of this rank's rows, such as by `local_step`."""

    @abstractmethod
    def end_epoch(self) -> None:
        """Set model and optimizer on every rank to the state that is validated and saved; a collective."""

    def state_dict(self) -> dict[str, Any]:
        """Return the additional state that this strategy needs to resume training; may be empty. Rank 0's is saved."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the strategy's state, after those of model and optimizer; called on every rank.

        Args:
            state: The result of rank 0's `state_dict`; empty if it was saved with another strategy.
        """

    # What a strategy may change.

    def check(self, parts: Parts) -> None:
        """Check that the strategy supports the parts.

        Raises:
            ConfigurationError: The parts use a feature that the strategy refuses.
        """
        refused = self.capabilities.refuses
        for part in fields(parts):
            if part.name in refused and getattr(parts, part.name) != part.default:
                self.refuse(part.name)
        if parts.autocast is torch.float16 and "float16" in refused:
            self.refuse("float16")

    def is_bound(self, trained: Trained) -> bool:
        """Return whether model, layers, optimizer and parameters are still those passed to `bind`."""
        objects = _objects_of(trained)
        return len(objects) == len(self._bound_objects) and all(map(operator.is_, objects, self._bound_objects))

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch, with the same weights and buffers on every rank; a collective.

        Args:
            epoch: Number of finished epochs.
        """

    def epoch_steps(self, shard: Shard, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the index of each step of an epoch and this rank's rows. A step is requested only when it is trained.

        Args:
            shard: This rank's shard.
            epoch: Index of the epoch, from 0.
        """
        yield from enumerate(shard.epoch(epoch))

    def start_step(self, rows: int) -> None:
        """Start a step with this number of rows on this rank."""
        self.rows = rows
        self.trained.optimizer.zero_grad()
        for parameter in self._untrained:  # stale gradients would make measures of them depend on resumes
            parameter.grad = None

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Compute a loss and accumulate its gradient.

        Args:
            inputs: Inputs of a batch.
            loss_of: Returns the mean loss for the model's output.
            loss_weight: The batch's share of the step's rows on this rank.
            last: Whether this is the last pass of the step.

        Returns:
            The mean loss, detached. The step's loss is the sum over passes and workers of this value times the rows. So
            a pass may return the loss of several passes, and others 0.
        """
        with self.trained.autocast():
            loss = loss_of(self.trained.model(inputs))
        scaled = loss if loss_weight == 1.0 else loss * loss_weight
        if self.trained.scaler is not None:
            scaled = self.trained.scaler.scale(scaled)
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step_optimizer(self) -> None:
        """Step the optimizer with the current gradients."""
        if self.trained.scaler is None:
            self.trained.optimizer.step()
        else:
            self.trained.scaler.step(self.trained.optimizer)
            self.trained.scaler.update()

    def serve(self, steps: int, set_rate: Callable[[int], None]) -> None:
        """Serve the workers for an epoch, on a rank that doesn't train.

        Args:
            steps: Number of steps of the epoch.
            set_rate: Sets the learning rate of this rank's optimizer for a step, given its index from 0.
        """
        raise NotImplementedError

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """Return the metrics of an epoch, the same on every rank; a collective.

        Args:
            metrics: This rank's metrics; None on a rank that doesn't train.
        """
        assert metrics is not None
        return dict(metrics)

    def abort(self, error: BaseException) -> None:
        """Close the groups that this strategy and its layers use, because the epoch failed; the caller closes `group`.

        Args:
            error: The reason, which the waiting ranks receive.
        """
        layers = self.trained.model.modules()
        of_layers = [layer.group for layer in layers if isinstance(layer, SyncBatchNorm)]
        for group in (*self.formed, *of_layers):
            group.close(error)

    # What a strategy may call.

    def refuse(self, feature: str, detail: str = "") -> NoReturn:
        """Raise an error with the reason why a feature can't be used.

        Args:
            feature: A key of the capabilities' `refuses`.
            detail: Where the feature was found, if that isn't clear.

        Raises:
            ConfigurationError: Always.
        """
        refused = self.capabilities.refuses[feature]
        reason = refused if not detail else f"{refused}; here {detail}"
        raise ConfigurationError(f"parallel.strategy {self.name} can't be used with {feature}: {reason}")

    def local_step(self) -> None:
        """Clip this rank's gradients, and step its optimizer with them."""
        if self.trained.scaler is not None:
            self.trained.scaler.unscale_(self.trained.optimizer)
        if self.trained.clip_norm is not None:
            # Clip only the optimizer's parameters; others may also have gradients.
            nn.utils.clip_grad_norm_(clippable(parameters_of(self.trained.optimizer)), self.trained.clip_norm)
        self.step_optimizer()

    @property
    def hooked(self) -> bool:
        """Whether the optimizer has step hooks of the user."""
        optimizer = self.trained.optimizer
        hooks = (*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values())
        return any(getattr(hook, "func", None) is not _check_under_way for hook in hooks)

    # What a trainer calls around them.

    @property
    def may_be_left_out(self) -> bool:
        """Whether a user's code may train without calling this strategy."""
        return self.group is None or self.capabilities.own_loop

    @property
    def has_state(self) -> bool:
        """Whether this kind of strategy has a state of its own."""
        return type(self).state_dict is not Strategy.state_dict

    def bind(self, trained: Trained) -> None:
        """Prepare the training of a model; a collective.

        Raises:
            ConfigurationError: The strategy can't train it.
        """
        check_parameters(trained.optimizer, trained.model)
        self.prepare(trained)
        self.trained = trained
        self._bound_objects = _objects_of(trained)
        of_optimizer = {id(parameter) for parameter in parameters_of(trained.optimizer)}
        self._untrained = [parameter for parameter in trained.model.parameters() if id(parameter) not in of_optimizer]
        if self._watch is not None:
            self._watch.remove()
        if not self.may_be_left_out:
            # A weak reference, because a cycle would keep models in memory until Python's garbage collection.
            self._watch = trained.optimizer.register_step_pre_hook(partial(_check_under_way, weakref.ref(self)))

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Start an epoch with rank 0's weights and buffers; a collective.

        Args:
            trained: The current model and optimizer. They are bound again if the user has replaced something.
            epoch: Number of finished epochs.

        Raises:
            MismatchError: The ranks have made different changes since the last epoch.
            ConfigurationError: The trainer has loaded a state without the strategy's.
        """
        if self.group is not None:
            # With asynchronous steps, the ranks' last rates belong to different steps.
            options = {"rates": self.capabilities.reproducible, "states": self.capabilities.same_states}
            check_same_training(trained.model, trained.optimizer, epoch, self.group, **options)
        if self.has_state and epoch != self.epochs:
            raise ConfigurationError(
                f"a Trainer's load_state_dict must call super().load_state_dict(state) under parallel.strategy "
                f"{self.name}, which keeps more than model and optimizer, got a trainer with `epoch` {epoch} whose "
                f"strategy has trained or loaded {self.epochs}: it would train differently from one that is never "
                "interrupted. Call it with what super().state_dict() gave"
            )
        if not self.is_bound(trained):
            self.bind(trained)
        if self.group is not None:
            # If user code reinitialized weights randomly, they differ between ranks.
            broadcast_tensors(differing(_tensors_of(trained), self.group), self.group)
        self.trained = trained
        self.epochs = epoch
        self._under_way = True
        self.begin_epoch(epoch)

    def finish_epoch(self) -> None:
        """End an epoch; a collective."""
        self._under_way = False
        self.end_epoch()
        self.epochs += 1


class Alone(Strategy):
    """Training on a single rank: a gradient, then a step."""

    name: ClassVar[str] = "alone"

    def step(self) -> None:
        """Step the optimizer."""
        self.local_step()

    def end_epoch(self) -> None:
        """Do nothing: the weights are those that are validated and saved."""


def _check_under_way(strategy: weakref.ref[Strategy], *_: object) -> None:
    """Raise an error if an optimizer steps outside an epoch of its strategy."""
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
    """Return the objects that a strategy depends on; None marks the end of each parameter group."""
    groups = trained.optimizer.param_groups
    in_groups = [parameter for group in groups for parameter in (*group["params"], None)]
    return [trained.optimizer, *trained.model.modules(), *trained.model.parameters(), *in_groups]
