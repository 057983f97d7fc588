"""The training loop of a trial, on one worker or several. A user defines the model and the data.

    class Small(Trainer):
        def build(self, params):
            model = nn.Linear(64, 10)
            return Parts(
                model,
                torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9),
                nn.functional.cross_entropy,
                train=(images, labels),
                validation=(more_images, more_labels),
                metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float()},
            )

An iteration is an epoch. Its randomness depends on the trial's seed, the epoch and the rank. The state between two
epochs does not depend on the number of workers, so a trial can resume with another number.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.architectures import architecture_of
from hpsearch_trainers.batches import Batches, in_whole_batches
from hpsearch_trainers.buffers import (
    hold_statistics,
    preserve_buffers,
    preserve_modes,
    synchronize,
    synchronize_buffers,
    synchronize_untrained,
)
from hpsearch_trainers.evaluation import evaluate, loss_of, measured
from hpsearch_trainers.forks import load_average, load_optimizer
from hpsearch_trainers.inheritance import Inherited, inherit
from hpsearch_trainers.moving_average import MovingAverage
from hpsearch_trainers.optimizers import (
    attributes_of,
    check_parameters,
    move_state,
    optimizer_of,
    other_optimizers,
)
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.precision import check_precision, precision, training_device
from hpsearch_trainers.rates import Rates, load_schedulers, save_schedulers
from hpsearch_trainers.scaling import Scaling, Stage, describe_target, rate_factor, rule_for
from hpsearch_trainers.shards import Shard, rows_of_rank
from hpsearch_trainers.strategies import strategy_of
from hpsearch_trainers.strategies.strategy import Trained
from hpsearch_trainers.trial import Beginning, Parametrized


class Trainer(ABC):
    """A trainable class whose `step` is one epoch.

    Each epoch reports the mean training `loss`, and on the validation data `validation_loss` and the metrics of `Parts`
    (exact: sums and counts are added up over all workers). It also reports `learning_rate` (of the optimizer's first
    group, at the epoch's end), `global_batch`, `data_wait` (share of the epoch's time spent waiting for data), and
    `Parts.measures` (the mean over all workers).

    Args:
        trial: An object with the attribute `params`. Optional attributes: `seed`, `group` (the trial's ranks; None or a
            group of size 1 for a single rank), `parallel` (see `strategies`), `scaling` (see `Scaling`) and `parent`
            (not None for a fork, which loads the state of another trial).

    Attributes:
        params: The trial's parameters.
        parts: The result of `build`.
        model: The model, on its device.
        optimizer: The optimizer.
        device: The device that the trial trains on: torch's current GPU, or the CPU.
        group: The ranks that train. None if a single rank trains, and on a rank that only holds weights.
        epoch: Number of finished epochs.

    Raises:
        ConfigurationError: `build` returned something that can't be used.
    """

    def __init__(self, trial: Parametrized) -> None:
        self.params = trial.params
        self._beginning = beginning = Beginning.of(trial)  # the trial itself could form a reference cycle
        # Outputs (rows, 1) minus targets (rows,) broadcast to (rows, rows), so the mean would not be the loss.
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        # A group of size 1 costs a millisecond to create, and isn't needed.
        group: Group | None = None if getattr(trial, "world_size", None) == 1 else getattr(trial, "group", None)
        ranks = group if group is not None and group.size > 1 else None
        self._strategy = strategy_of(beginning.parallel, ranks)
        self.group = self._strategy.workers
        self.device = training_device()
        self.epoch = 0
        self._forked = getattr(trial, "parent", None) is not None
        self._scaling = Scaling.from_dict(beginning.scaling)
        rank, width = self._strategy.part_index, self._strategy.parts
        parts = self.parts = self.build(trial.params)
        if not isinstance(parts, Parts):
            name = type(self).__name__
            raise ConfigurationError(f"{name}.build must give Parts(model, ...), got {type(parts).__name__}")
        self._seed = beginning.seed if parts.seed is None else parts.seed
        check_precision(self.device, parts.autocast)
        self._strategy.check(parts)
        parts.to(self.device)
        self.model = parts.model
        self._normalizing = self.group if parts.batch_norm == "sync" else None
        self._synchronized = synchronize(self.model, self._normalizing)
        self.optimizer = optimizer_of(parts, self.model)
        for other in other_optimizers(self, self.optimizer).values():
            move_state(other)
        self._rates = Rates(self.optimizer)
        self._average = None if parts.average is None else MovingAverage(self.model, parts.average)
        self._scaler = torch.amp.GradScaler(self.device.type) if parts.autocast is torch.float16 else None
        self._strategy.bind(self._trained())
        if parts.compile:
            torch.compiler.reset()  # models of earlier trials count toward torch's recompilation limit
            self.model.compile(**({} if parts.compile is True else {"backend": parts.compile}))
        self._train = Batches(parts.train, self.device, parts.loaders)
        validation_data = parts.validation
        self._validation = None if validation_data is None else Batches(validation_data, self.device, parts.loaders)
        if self._validation is not None and self._validation.rows < 1:
            raise ConfigurationError("validation data must have at least one row, got 0: leave `validation` out")
        batch = self._scaling.global_batch(parts.batch_size, width)
        rows, order = self._train.rows, None
        if isinstance(parts.train, DataLoader):
            rows = in_whole_batches(rows, batch) if parts.train.drop_last else rows
            if self._train.ordered:
                order = partial(_order_of, self._train, self._seed)
        self._shard = Shard(rows, batch, self._seed, rank, width, order)
        rule = self._strategy.capabilities.rate_rule or rule_for(self.optimizer)
        self._target = self._scaling.target(parts.batch_size, width, rule)
        self._stages = [Stage(0.0, self._target)]
        if self._strategy.is_main_rank and self._scaling.lr is None and self._target != 1.0:
            grown = f"{width} workers: a step has {self._shard.batch} rows in place of {parts.batch_size}"
            print(f"{grown}, and the rate {describe_target(self._target, rule, self.optimizer)}")
        inherited = None if getattr(trial, "start", 0) else getattr(trial, "parent_checkpoint", None)
        if inherited is not None:
            self.inherit(inherited)

    @abstractmethod
    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the model, optimizer, loss and data for the trial's parameters. They must be equal on every worker."""

    def step(self) -> dict[str, float]:
        """Train for an epoch and validate. Every rank must call it, also if a subclass overrides it.

        Returns:
            The metrics, the same on every rank.

        Raises:
            ConfigurationError: The strategy can't train what there is now, or its state wasn't loaded.
        """
        try:
            self._refresh_bindings()
            self._strategy.start_epoch(self._trained(), self.epoch)
            if self._strategy.trains:
                return self._strategy.synchronize_metrics(self._train_epoch())
            self._serve_epoch()
            return self._strategy.synchronize_metrics(None)
        except BaseException as error:
            with contextlib.suppress(ConfigurationError):
                self._rates.restore()
            self._strategy.abort(error)
            raise

    def train_batches(self) -> Generator[tuple[Any, Any], None, None]:
        """Yield the batches of an epoch to a custom loop in `step`, then increment `epoch`.

        This method seeds the generators for the epoch and sets the learning rate of `optimizer` before each batch. The
        loop does the rest: `zero_grad`, forward and backward passes, clipping, and the steps of all optimizers. A
        moving average is updated when the loop requests the next batch. An epoch also counts if the loop breaks early.

        Yields:
            A pair of inputs and targets, on the device.

        Raises:
            ConfigurationError: The trial has several workers; this method doesn't exchange anything between them.
        """
        if self._strategy.group is not None:
            raise ConfigurationError(
                "a step with a loop of its own takes one worker, got several: call super().step() in it, or write the "
                "loop in a class that isn't a Trainer and says what ranks exchange"
            )
        self._refresh_bindings()
        self._begin_epoch()
        with contextlib.closing(self._train.read(self._shard.epoch(self.epoch), self._drawn("rows"))) as batches:
            try:
                for step, batch in enumerate(batches):
                    self._set_rate(self.epoch + step / self._shard.steps)
                    try:
                        yield batch
                    finally:
                        if self._average is not None:
                            self._average.update_parameters(self.model)
            finally:
                self.epoch += 1
                self._rates.restore()

    def _begin_epoch(self) -> None:
        self._seed_epoch()
        self.model.train()
        frozen = self.parts.freeze_batch_norm
        if frozen is not None and self.epoch >= frozen:
            hold_statistics(self.model)

    def _refresh_bindings(self) -> None:
        """Update the references to models, layers and optimizers that the user replaced since the last epoch."""
        self._rates = self._rates.of(self.optimizer)
        self._synchronized = synchronize(self.model, self._normalizing)
        if self._average is not None:
            self._average = self._average.of(self.model)

    def _trained(self) -> Trained:
        # Without a reference to this trainer: a cycle would keep models in memory until Python's garbage collection.
        autocast = partial(precision, self.device.type, self.parts.autocast)
        return Trained(self.model, self.optimizer, autocast, self.parts.clip_norm, self._average, self._scaler)

    def _train_epoch(self) -> dict[str, float]:
        began, waited = time.perf_counter(), self._train.waited
        self._begin_epoch()
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        steps, read_ahead = itertools.tee(self._epoch_steps())
        read = self._train.read((rows for *_, passes in read_ahead for rows in passes), self._drawn("rows"))
        with contextlib.closing(read) as batches:
            for step, count, passes in steps:
                self._set_rate(self.epoch + step / self._shard.steps)
                self._step(batches, [len(rows) for rows in passes], count, loss)
        self._rates.restore()
        self._strategy.finish_epoch()
        metrics = self._end_epoch(self._sum(loss), (self._train.waited - waited) / (time.perf_counter() - began))
        if self.group is not None:
            synchronize_untrained(self.model, self._average, self.optimizer, self.group)
            for model in (self.model, self._average):
                if model is not None:
                    self.synchronize_buffers(model, self.group)
            metrics["data_wait"] = self._sum(torch.tensor(metrics["data_wait"])) / self.group.size
        return metrics | self.validate() | self._measured()

    def _epoch_steps(self) -> Iterator[tuple[int, int, list[Tensor]]]:
        """Yield the index of each step, the number of its rows on this rank, and the rows of each backward pass."""
        for step, rows in self._strategy.epoch_steps(self._shard, self.epoch):
            yield step, len(rows), self._passes(step, rows)

    def _serve_epoch(self) -> None:
        """Serve the ranks that train until they have finished the epoch."""
        steps = self._shard.steps
        self._strategy.serve(steps, lambda step: self._set_rate(self.epoch + step / steps))
        self._rates.restore()
        self._strategy.finish_epoch()
        self.epoch += 1

    def _end_epoch(self, loss: float, data_wait: float) -> dict[str, float]:
        """Increment `epoch`; return the epoch's training metrics.

        Args:
            loss: Sum of the losses of all rows.
            data_wait: Share of the epoch's time spent waiting for data.
        """
        self.epoch += 1
        self._rates.restore()
        return {
            "loss": loss / self._shard.rows,
            "learning_rate": float(self._rates.used),
            "global_batch": float(self._shard.batch),
            "data_wait": data_wait,
        }

    def validate(self) -> dict[str, float]:
        """Return the loss and the metrics on the validation data, over all workers."""
        if self._validation is None:
            return {}
        model = self.model if self._average is None else self._average
        with preserve_modes(model):  # a user's loop may continue to train
            return evaluate(model, self._validation, self.parts, self.group, self._autocast)

    def _measured(self) -> dict[str, float]:
        """Return `Parts.measures` of the validated model, averaged over all workers."""
        model = self.model if self._average is None else self._average.module
        return measured(model, self.parts.measures, self.group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which training resumes with any number of workers: tensors and plain containers.

        Raises:
            ConfigurationError: The ranks have trained nothing together, because a subclass overrides `step` without
                calling Trainer's; or the state has an optimizer or a scheduler that can't be saved.
        """
        strategy = self._strategy
        if strategy.epochs == 0 and not strategy.may_be_left_out:
            raise ConfigurationError(
                f"{type(self).__name__}.step must train for an epoch with super().step() under parallel.strategy "
                f"{strategy.name}, got a state to save before any such epoch: what was reported would be of a model "
                "that each rank trains by itself. Call super().step() in it; a loop of your own belongs in a class "
                "that isn't a Trainer, and says what ranks exchange"
            )
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_class": type(self.optimizer).__qualname__,
            "epoch": self.epoch,
            "stages": [[stage.epoch, stage.target] for stage in self._stages],
        }
        if self._average is not None:
            state["average"] = self._average.state_dict()
        if self._scaler is not None:
            state["scaler"] = self._scaler.state_dict()
        alone = type(self).state_dict is Trainer.state_dict
        if extra_optimizers := other_optimizers(self, self.optimizer):
            for name, extra in extra_optimizers.items() if alone else ():
                check_parameters(extra, self.model, name)
            state["optimizers"] = {
                name: {"optimizer": extra.state_dict(), "optimizer_class": type(extra).__qualname__}
                for name, extra in extra_optimizers.items()
            }
        if schedulers := save_schedulers(self, self.optimizer, alone=alone):
            state["schedulers"] = schedulers
        if helpers := self._helpers():
            state["helpers"] = {name: helper.state_dict() for name, helper in helpers.items()}
        if own_state := strategy.state_dict():
            state["strategy"] = {"name": strategy.name, **own_state}
        if (architecture := architecture_of(self.model)) is not None:
            state["architecture"] = architecture
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. If the trial now has more workers, the learning rate warms up from this epoch on.

        A forked trial loads the state of another trial, but keeps the settings of its own optimizer and schedulers.

        Raises:
            ConfigurationError: The trainer lacks something that is saved, or the state lacks what a subclass has left
                out and the strategy needs.
        """
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state, forked=self._forked, verbose=self._strategy.is_main_rank)
        self._load_other_optimizers(state.get("optimizers", {}))
        load_schedulers(self, self.optimizer, state.get("schedulers", {}), forked=self._forked)
        for name, helper in self._helpers().items():
            if name in state.get("helpers", {}):
                helper.load_state_dict(copy.deepcopy(state["helpers"][name]))
        if self._average is not None:
            load_average(self._average, state, forked=self._forked)
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
        self.epoch = self._strategy.epochs = state["epoch"]
        self._strategy.load_state_dict(self._strategy_state(state))
        self._stages = [Stage(float(epoch), float(target)) for epoch, target in state["stages"]]
        if self._stages[-1].target != self._target:
            self._stages.append(Stage(float(self.epoch), self._target))

    def _strategy_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the strategy's own state in a trainer's state; empty if another strategy saved it."""
        strategy = self._strategy
        overrides = [
            name
            for name in ("state_dict", "load_state_dict")
            if getattr(type(self), name) is not getattr(Trainer, name)
        ]
        if overrides and strategy.has_state and state["epoch"] > 0 and "strategy" not in state and not self._forked:
            raise ConfigurationError(
                f"{type(self).__name__}.{overrides[0]} must keep all that super().state_dict() returns under "
                f"parallel.strategy {strategy.name}, which keeps more than model and optimizer, got a state without "
                "its `strategy`: a trial resumed from it would train differently from one that is never interrupted. "
                "Save that entry, and pass it to super().load_state_dict(); for the state of another strategy, pass "
                "`strategy` as {}"
            )
        entry: Mapping[str, Any] = state.get("strategy", {})
        return entry if entry.get("name") == strategy.name else {}

    def _helpers(self) -> dict[str, torch.amp.GradScaler | AveragedModel]:
        """Return the GradScalers and averaged models of a user's own loop, by attribute name."""
        helpers: dict[str, Any] = {**attributes_of(self, torch.amp.GradScaler), **attributes_of(self, AveragedModel)}
        return {name: value for name, value in helpers.items() if value not in (self._scaler, self._average)}

    def _load_other_optimizers(self, states: Mapping[str, Any]) -> None:
        extra_optimizers = other_optimizers(self, self.optimizer)
        if not self._forked and extra_optimizers.keys() != states.keys():
            saved, present = (", ".join(sorted(names)) or "none" for names in (states, extra_optimizers))
            raise ConfigurationError(
                f"a trainer must have the optimizers that its state was saved with, {saved}, got {present}: make them "
                "in build or in __init__, and keep the entry `optimizers` of super().state_dict()"
            )
        for name in extra_optimizers.keys() & states.keys():
            load_optimizer(
                extra_optimizers[name], states[name], forked=self._forked, verbose=self._strategy.is_main_rank
            )

    def inherit(self, state: Mapping[str, Any]) -> None:
        """Copy a parent's weights as far as they match. Called for a child that starts at epoch 0.

        A network of `hpsearch_trainers.architectures` computes the same function as its parent if the architectures
        allow it: see `hpsearch_trainers.inheritance`. In any other model, weights and buffers are copied if name and
        shape are equal. Other weights and the optimizer are left unchanged. Override this method to copy more.

        Args:
            state: The parent's `state_dict()`; state of another class is ignored.
        """
        weights, architecture = state.get("model"), state.get("architecture")
        inherited = Inherited({}, (), by_architecture=False)
        if weights is not None:
            inherited = inherit(self.model, weights, architecture, self._seed)
        if self._average is not None:
            self._average.module.load_state_dict(self.model.state_dict())
            if inherited.preserving and "average" in state:
                averages = {name.removeprefix("module."): value for name, value in state["average"].items()}
                self._average.n_averaged.copy_(averages.pop("n_averaged"))
                inherit(self._average.module, averages, architecture, self._seed)
        if self._strategy.is_main_rank:
            print(f"{inherited}; the rest and the optimizer begin anew")

    def synchronize_buffers(self, model: nn.Module, group: Group) -> None:
        """Make the model's buffers equal on all workers at the end of each epoch; a collective.

        Floating-point buffers are averaged; others are copied from rank 0. Override this method if a buffer, such as a
        queue of features, needs another rule. Afterwards every buffer must be equal on all workers.

        Args:
            model: The model; in a second call its moving average, if it exists.
            group: The workers, two or more.
        """
        synchronize_buffers(model, group)

    def _passes(self, step: int, rows: Tensor) -> list[Tensor]:
        """Divide a step's rows among its backward passes. All workers run the same number, because they synchronize.

        The last batch of an epoch may be too small for a worker to have rows. Then that worker computes one row with
        weight 0, because not every model and loss accepts an empty batch. If a layer is synchronized, the batch is
        empty, because such a layer would count the row.
        """
        if len(rows) == 0:
            return [rows if self._synchronized else torch.zeros(1, dtype=torch.int64)]
        if self.parts.accumulate * self._strategy.passes == 1:
            return [rows]
        fewest = self._shard.rows_of(step) // self._shard.width
        count = max(1, min(self.parts.accumulate * self._strategy.passes, fewest))
        if count == 1:
            return [rows]
        parts = (rows_of_rank(len(rows), count, number) for number in range(count))
        return [rows[part.start : part.stop] for part in parts]

    def _step(self, batches: Iterator[Any], sizes: Sequence[int], rows: int, total: Tensor) -> None:
        """Take one optimizer step; add the losses of this worker's rows to `total`.

        Args:
            batches: Yields the step's batches, one for each backward pass.
            sizes: Number of rows of each batch.
            rows: Number of rows that count: all, or 0.
            total: Sum of the losses, 0-dimensional; changed in place.
        """
        self._strategy.start_step(rows)
        with contextlib.nullcontext() if rows > 0 else self._uncounted_pass():
            for number, size in enumerate(sizes, 1):
                inputs, targets = next(batches)
                loss_weight = size / rows if len(sizes) > 1 else 1.0
                of_output = partial(loss_of, self.parts.loss, targets=targets)
                loss = self._strategy.backward(inputs, of_output, loss_weight, last=number == len(sizes))
                if rows > 0:
                    total.add_(loss, alpha=size)
        self._strategy.step()
        if self._average is not None:
            self._average.update_parameters(self.model)

    @contextlib.contextmanager
    def _uncounted_pass(self) -> Iterator[None]:
        """Run a pass with a row that doesn't count: buffers, such as running statistics, stay unchanged."""
        hold_statistics(self.model, local_only=True)
        with preserve_buffers(self.model):
            yield

    def _set_rate(self, epoch: float) -> None:
        factor = rate_factor(self._stages, epoch, self._scaling.warmup_epochs)
        if self.parts.schedule is not None:
            factor *= self.parts.schedule(epoch)
        self._rates.apply(factor)

    @property
    def _rate_is_steady(self) -> bool:
        """Whether the rate is the same in each step: without a schedule, and never scaled."""
        return self.parts.schedule is None and all(stage.target == 1.0 for stage in self._stages)

    def _seed_epoch(self) -> None:
        seed = self._epoch_seed()
        # torch.manual_seed also seeds every device type, which takes half as long as a step of a small model.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _epoch_seed(self) -> int:
        return self._drawn(f"rank {self._strategy.stream}")

    def _drawn(self, purpose: str) -> int:
        return _drawn(purpose, self.epoch, self._seed)

    def _sum(self, value: Tensor) -> float:
        """Return the sum of a value over all workers."""
        if self.group is not None:
            value = self.group.allreduce(value.double().clone(), op="sum")
        return float(value)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return precision(self.device.type, self.parts.autocast)


def _drawn(purpose: str, epoch: int, seed: int) -> int:
    """Return the seed for a purpose in an epoch of a trial, from 0 to 2**63 - 1."""
    digest = hashlib.sha256(f"{purpose} in epoch {epoch} of {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & 0x7FFF_FFFF_FFFF_FFFF


def _order_of(data: Batches, seed: int, epoch: int) -> Tensor:
    order = data.order(_drawn("sampler", epoch, seed), epoch)
    assert order is not None
    return order
