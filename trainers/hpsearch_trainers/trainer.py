"""Training one trial: what a user writes is the model and the data, the loop is here, on one worker or on many.

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

An iteration is an epoch. All that is random in it follows from the trial's seed, the epoch and the rank, and the state
between two epochs holds nothing of the width: so a trial may go on with another number of workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hpsearch_comm import DataParallel, Group, convert_sync_batchnorm
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.batches import Batches, cut
from hpsearch_trainers.evaluation import evaluate
from hpsearch_trainers.normalization import average_statistics, hold_statistics
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.rates import Rates, take_over
from hpsearch_trainers.scaling import Scaling, Stage, rate_factor, rule_for
from hpsearch_trainers.shards import Shard, rows_of_rank
from hpsearch_trainers.trial import Parametrized

__all__ = ["Trainer"]


class Trainer(ABC):
    """A trainable class whose `step` is one epoch.

    Each epoch reports the mean training `loss`, on the validation data `validation_loss` and the metrics of `Parts`
    (exact: sums and counts are added up over all workers), and what it was trained with: `learning_rate` (of the
    optimizer's first group, at the epoch's end), `global_batch`, and `data_wait`, the share of the epoch's time spent
    waiting for data.

    Args:
        trial: Gives `params`; and `seed`, `group` (the workers; None or a group of one for one), `scaling` (see
            `Scaling`) and `parent` (not None where the state to load is that of another trial, which this one was
            forked from), if it has them.

    Attributes:
        params: The trial's.
        parts: What `build` gave.
        model: The model, on its device.
        optimizer: The optimizer.
        device: Where it trains: the GPU that is torch's current one, or the CPU.
        group: The workers, or None for one.
        epoch: How many epochs are done.

    Raises:
        ConfigurationError: `build` gave something that can't be used.
    """

    def __init__(self, trial: Parametrized) -> None:
        self.params = trial.params
        group: Group | None = getattr(trial, "group", None)
        self.group = group if group is not None and group.size > 1 else None
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.epoch = 0
        self._seed = int(getattr(trial, "seed", 0))
        self._forked = getattr(trial, "parent", None) is not None
        self._scaling = Scaling.from_dict(getattr(trial, "scaling", None) or {})
        rank, width = (self.group.rank, self.group.size) if self.group is not None else (0, 1)
        parts = self.parts = self.build(trial.params)
        if not isinstance(parts, Parts):
            raise ConfigurationError(f"{type(self).__name__}.build must give Parts, got {type(parts).__name__}")
        self.model = parts.model.to(self.device)
        if self.group is not None and parts.batch_norm == "sync":
            self.model = convert_sync_batchnorm(self.model, self.group)
        made = parts.optimizer
        self.optimizer = made if isinstance(made, torch.optim.Optimizer) else made(self.model)
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ConfigurationError(
                f"optimizer must be a torch.optim.Optimizer, or a function that makes one of the model, got one that "
                f"gives {type(self.optimizer).__name__}"
            )
        self._rates = Rates(self.optimizer)
        self._average = None
        if parts.average is not None:
            decay = get_ema_multi_avg_fn(parts.average)  # type: ignore[no-untyped-call]
            self._average = AveragedModel(self.model, multi_avg_fn=decay, use_buffers=True)
        self._parallel: DataParallel | None = None
        if self.group is not None:
            self._parallel = DataParallel(self.model, self.group, weighted=True)
        self._train = Batches(parts.train, self.device, parts.loaders)
        self._validation = None
        if parts.validation is not None:
            self._validation = Batches(parts.validation, self.device, parts.loaders)
            if self._validation.rows < 1:
                raise ConfigurationError("validation data must have at least one row, got 0: leave `validation` out")
        batch = self._scaling.global_batch(parts.batch_size, width)
        self._shard = Shard(self._train.rows, batch, self._seed, rank, width)
        self._target = self._scaling.target(parts.batch_size, width, rule_for(self.optimizer))
        self._stages = [Stage(0.0, self._target)]
        if rank == 0 and self._scaling.lr is None and self._target != 1.0:
            rule = f"{rule_for(self.optimizer)}, the rule for {type(self.optimizer).__name__}"
            print(
                f"{width} workers: a step has {self._shard.batch} rows in place of {parts.batch_size}, and the rate "
                f"goes to {self._target:g} times its own ({rule}; scaling.lr names another)"
            )

    @abstractmethod
    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make model, optimizer, loss and data from the trial's parameters; the same on every worker."""

    def step(self) -> dict[str, float]:
        """Train for an epoch and validate; every worker of the group calls it.

        Returns:
            The metrics, the same on every worker.
        """
        began, waited = time.perf_counter(), self._train.waited
        self._seed_epoch()
        self.model.train()
        frozen = self.parts.freeze_batch_norm
        if frozen is not None and self.epoch >= frozen:
            hold_statistics(self.model)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for step, batch in enumerate(self._train.read(self._shard.epoch(self.epoch), self._drawn("rows"))):
            self._set_rate(self.epoch + step / self._shard.steps)
            self._step(batch, self._shard.rows_of(step), loss)
        self.epoch += 1
        metrics = {
            "loss": self._sum(loss) / self._shard.rows,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "global_batch": float(self._shard.batch),
            "data_wait": (self._train.waited - waited) / (time.perf_counter() - began),
        }
        if self.group is not None:
            for model in (self.model, self._average):
                if model is not None:
                    average_statistics(model, self.group)
            metrics["data_wait"] = self._sum(torch.tensor(metrics["data_wait"])) / self.group.size
        return metrics | self.validate()

    def validate(self) -> dict[str, float]:
        """Give the loss and the metrics on the validation data, over all workers."""
        if self._validation is None:
            return {}
        model = self.model if self._average is None else self._average
        return evaluate(
            model,
            self._validation,
            self.parts.loss,
            self.parts.metrics,
            self.parts.validation_batch_size,
            self.group,
            self._autocast,
        )

    def state_dict(self) -> dict[str, Any]:
        """Give what continues the training at any width: tensors and plain containers."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "stages": [[stage.epoch, stage.target] for stage in self._stages],
        }
        if self._average is not None:
            state["average"] = self._average.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state, at this width: where it has grown, the rate warms up from here.

        A forked trial takes over the state of another one, but not the settings of its optimizer: these are its own.
        """
        self.model.load_state_dict(state["model"])
        load = take_over if self._forked else torch.optim.Optimizer.load_state_dict
        load(self.optimizer, state["optimizer"])
        self._rates = Rates(self.optimizer)
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        self.epoch = state["epoch"]
        self._stages = [Stage(float(epoch), float(target)) for epoch, target in state["stages"]]
        if self._stages[-1].target != self._target:
            self._stages.append(Stage(float(self.epoch), self._target))

    def _step(self, batch: Any, rows_of_all: int, total: Tensor) -> None:
        """Take one optimizer step; add the losses of this worker's rows to the total."""
        rows = len(batch[1])
        self.optimizer.zero_grad()
        if self._parallel is not None:
            self._parallel.set_weight(rows)
        if rows == 0:
            # The others have the epoch's last rows. This worker's pass counts for nothing, in statistics neither.
            hold_statistics(self.model, local_only=True)
        pieces = self._pieces(batch, rows, rows_of_all)
        for number, (some, wanted) in enumerate(pieces):
            with self._without_averaging(number < len(pieces) - 1):
                with self._autocast():
                    loss = self.parts.loss(self.model(some), wanted)
                if loss.dim() > 0:
                    raise ConfigurationError(
                        f"loss must give one number, the mean over a batch's rows, got the shape {list(loss.shape)}: "
                        "end it with .mean(), or reduction='mean'"
                    )
                share = loss * (len(wanted) / rows) if len(pieces) > 1 else loss
                share.backward()  # type: ignore[no-untyped-call]
            if rows > 0:  # of none, the mean is no number
                total.add_(loss.detach(), alpha=len(wanted))
        if self.parts.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.parts.clip_norm)
        self.optimizer.step()
        if self._average is not None:
            self._average.update_parameters(self.model)

    def _pieces(self, batch: Any, rows: int, rows_of_all: int) -> list[Any]:
        """Cut a batch into as many pieces as it takes backward passes: on each worker as many, as all meet in them."""
        fewest = rows_of_all // self._shard.width
        count = max(1, min(self.parts.accumulate, fewest))
        return [batch] if count == 1 else [cut(batch, rows_of_rank(rows, count, number)) for number in range(count)]

    def _without_averaging(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        return self._parallel.no_sync() if wanted and self._parallel is not None else contextlib.nullcontext()

    def _set_rate(self, epoch: float) -> None:
        factor = rate_factor(self._stages, epoch, self._scaling.warmup_epochs)
        if self.parts.schedule is not None:
            factor *= self.parts.schedule(epoch)
        self._rates.apply(factor)

    def _seed_epoch(self) -> None:
        seed = self._drawn(f"rank {self._shard.rank}")
        # Not torch.manual_seed, which asks every kind of device that this torch knows: half a step of a small model.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _drawn(self, what: str) -> int:
        """Give the seed of something in this epoch, from 0 to 2**63 - 1."""
        digest = hashlib.sha256(f"{what} in epoch {self.epoch} of {self._seed}".encode()).digest()
        return int.from_bytes(digest[:8], "little") & 0x7FFF_FFFF_FFFF_FFFF

    def _sum(self, value: Tensor) -> float:
        """Add up over all workers."""
        if self.group is not None:
            value = self.group.allreduce(value.double().clone(), op="sum")
        return float(value)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self.parts.autocast
        return torch.autocast(self.device.type, dtype) if dtype is not None else contextlib.nullcontext()
