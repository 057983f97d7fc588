"""Local steps between averages: SparkNet (Moritz et al., 2015, algorithm 2), local SGD (Stich, 2019, algorithm 1).

Each worker takes `period` steps with its own rows. Then the weights are averaged over the workers, weighted by the rows
that each worker has processed since the last average:

    worker 0    w ─ step ─ step ─┐      ┌─ step ─ step ─┐      ┌─ step ─┐
                                 ├ mean ┤               ├ mean ┤        ├ mean     the epoch's end
    worker 1    w ─ step ─ step ─┘      └─ step ─ step ─┘      └─ step ─┘

The count of steps restarts in each epoch, and the weights are also averaged at the end of an epoch. So a checkpoint has
a single copy of the weights for any number of workers, and an epoch depends only on the state before it. With
`period: 1`, plain SGD takes the same steps as with `allreduce`.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.averaging import LocalSteps, average_optimizer, average_tensors, average_weights
from hpsearch_trainers.strategies.strategy import Options


class LocalSGD(LocalSteps):
    """Averages the weights every `period` steps.

    Within an epoch, each worker keeps its own optimizer state (`momentum: keep`, as in SparkNet), or the states are
    averaged with the weights (`momentum: average`). At the end of an epoch they are always averaged, so a checkpoint
    has a single state.
    """

    name: ClassVar[str] = "local_sgd"

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        self._period = options.integer("period", 8)
        self._common: dict[nn.Parameter, Tensor] = {}
        self._keeps_momentum = options.choice("momentum", ("keep", "average")) == "keep"

    def begin_epoch(self, epoch: int) -> None:
        """Start the epoch's first round."""
        super().begin_epoch(epoch)
        self._start_round()

    def step(self) -> None:
        """Step, and average the weights after the last step of a round."""
        super().step()
        self._round_steps += 1
        self._round_rows += self.rows
        if self._round_steps == self._period:
            self._average()
            self._start_round()

    def end_epoch(self) -> None:
        """Average the workers' weights after the last round, if it wasn't complete."""
        if self._round_steps > 0:
            self._average()
        self._common = {}
        rows = self._of_workers(self._epoch_rows)
        if self._keeps_momentum:
            average_optimizer(self.trained.optimizer, rows, self.group)
        self._average_moving_average(rows)

    def _start_round(self) -> None:
        self._round_steps = self._round_rows = 0
        self._common = {parameter: parameter.detach().clone() for parameter in self._trained_now()}

    def _trained_now(self) -> list[nn.Parameter]:
        return [parameter for parameter in parameters_of(self.trained.optimizer) if parameter.requires_grad]

    def _average(self) -> None:
        rows = self._of_workers(self._round_rows)
        weight = rows[self.group.rank] / sum(rows)
        changed = list(self._common)
        average_tensors(changed, [weight] * len(changed), self.group, list(self._common.values()))
        # Parameters that the user unfroze within the round.
        average_weights(
            (parameter for parameter in self._trained_now() if parameter not in self._common), rows, self.group
        )
        if not self._keeps_momentum:
            average_optimizer(self.trained.optimizer, rows, self.group)
