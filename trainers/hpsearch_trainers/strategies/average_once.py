"""One average at the end: parallelized SGD (Zinkevich et al., 2010, algorithms 1 and 3).

All workers start from the same weights, and each trains independently on its own rows until the end. The result is the
mean of their weights. Every epoch may be the last, so the mean is computed and validated after each epoch. The workers
then continue from their own weights:

    worker 0    w ─ steps ─ steps ─ steps ─┐
                       ╎       ╎           ├ mean
    worker 1    w ─ steps ─ steps ─ steps ─┘
                       ╎       ╎
                     (mean)  (mean)           validated and saved after each epoch
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import digest
from hpsearch_trainers.strategies.averaging import LocalSteps, average_optimizer, average_weights
from hpsearch_trainers.strategies.common_state import gather_worker_states, take_state
from hpsearch_trainers.strategies.strategy import Options, Trained


class AverageOnce(LocalSteps):
    """Averages the workers' weights only at the end; workers don't exchange anything during training.

    Between two epochs, model and optimizer hold the mean over the workers. A checkpoint contains this mean as `model`
    and `optimizer`, and in addition each worker's own state.
    """

    name: ClassVar[str] = "average_once"

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._own_state: dict[str, Any] | None = None
        self._shown_marks: dict[tuple[str, Any], str] = {}
        self._all_states: list[dict[str, Any]] = []

    def prepare(self, trained: Trained) -> None:
        """Prepare a new start from rank 0's weights."""
        super().prepare(trained)
        self._own_state = None

    def begin_epoch(self, epoch: int) -> None:
        """Restore this worker's own state, except tensors that the user has changed since the last epoch."""
        super().begin_epoch(epoch)
        own, self._own_state = self._own_state, None
        if own is None:
            return
        trained, marks = self.trained, _marks(self.trained)

        def is_unchanged(kind: str, key: Any) -> bool:
            return marks.get((kind, key)) == self._shown_marks.get((kind, key))

        for name, tensor in _tensors(trained.model).items():
            if is_unchanged("model", name):
                tensor.copy_(own["model"][name])
        if own["optimizer_class"] == type(trained.optimizer).__qualname__:
            states = trained.optimizer.state_dict()["state"]
            changed = {index: state for index, state in states.items() if not is_unchanged("optimizer", index)}
            kept = {index: state for index, state in own["optimizer"].items() if is_unchanged("optimizer", index)}
            take_state(trained.optimizer, changed | kept)

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """See `Strategy.synchronize_metrics`. Also record the state that the user sees after the epoch."""
        self._shown_marks = _marks(self.trained)
        return super().synchronize_metrics(metrics)

    def end_epoch(self) -> None:
        """Save this worker's own state, and load the mean into model and optimizer."""
        model, optimizer = self.trained.model, self.trained.optimizer
        self._own_state = {
            "model": {name: tensor.clone() for name, tensor in _tensors(model).items()},
            "optimizer": copy.deepcopy(optimizer.state_dict()["state"]),
            "optimizer_class": type(optimizer).__qualname__,
        }
        self._all_states = gather_worker_states(self._own_state, self.group)
        rows = self._of_workers(self._epoch_rows)
        average_weights(model.parameters(), rows, self.group)
        average_optimizer(optimizer, rows, self.group)
        self._average_moving_average(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the own states of all workers on rank 0, and an empty dict on other ranks."""
        return {"workers": self._all_states} if self._all_states else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this worker's own state. Without one, all workers start from the mean. Also record the state.

        Raises:
            ConfigurationError: The state was saved with another number of workers.
        """
        workers = state.get("workers", [])
        if workers and len(workers) != self.group.size:
            raise ConfigurationError(
                f"a trial under parallel.strategy {self.name} must go on with as many workers as it was saved with, "
                f"{len(workers)}, got {self.group.size}: each has weights of its own. Another strategy goes on from "
                "their mean"
            )
        self._own_state = workers[self.group.rank] if workers else None
        self._all_states = workers if self.group.rank == 0 else []
        self._shown_marks = _marks(self.trained)


def _marks(trained: Trained) -> dict[tuple[str, Any], str]:
    """Return a hash of each tensor of the model, and of the optimizer's state of each parameter."""
    marks = {("model", name): digest(tensor) for name, tensor in _tensors(trained.model).items()}
    for index, state in trained.optimizer.state_dict()["state"].items():
        entries = [
            f"{name} {digest(value.to_dense()) if isinstance(value, Tensor) else value}"
            for name, value in state.items()
        ]
        marks["optimizer", index] = "\n".join(sorted(entries))
    return marks


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
