"""The base class of strategies with parameter servers: the last ranks hold the weights, and the others train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from hpsearch_comm import Group, broadcast_parameters
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import differing, untrained
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.placement import Bucket, Placed, assign_parameters
from hpsearch_trainers.strategies.pushes import put_weights, take_weights
from hpsearch_trainers.strategies.strategy import Options, Strategy, Trained


class Served(Strategy):
    """Divides ranks into workers and servers.

    Attributes:
        servers: The ranks of the servers.
        parameters: The result of `trained_parameters` at the start of the epoch.
    """

    least: ClassVar[int] = 2

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        assert group is not None
        self.ranks = group
        count = options.integer("servers", 1)
        if count >= group.size:
            raise ConfigurationError(
                f"parallel.servers must leave a worker to train: got {count} of {group.size} ranks, which count both "
                "servers and workers; lower it, or raise resources.workers_per_trial"
            )
        self._workers = group.size - count
        self.servers = range(self._workers, group.size)
        self.trains = group.rank < self._workers
        self.workers = group.subgroup(range(self._workers)) if self._workers > 1 else None
        self.formed = [] if self.workers is None else [self.workers]

    @property
    def parts(self) -> int:
        """See `Strategy.parts`."""
        return self._workers

    @property
    def part_index(self) -> int:
        """See `Strategy.part_index`."""
        return self.ranks.rank if self.trains else 0

    def bind(self, trained: Trained) -> None:
        """Bind the model and optimizer, and broadcast rank 0's weights and buffers."""
        super().bind(trained)
        broadcast_parameters([*trained.model.named_parameters(), *trained.model.named_buffers()], self.ranks)

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Compute a loss and accumulate its gradient.

        Raises:
            ConfigurationError: The model or the loss has changed weights, which the servers would overwrite.
        """

        def checked(output: Any) -> Tensor:
            loss = loss_of(output)
            self._check_weights()
            return loss

        return super().backward(inputs, checked, loss_weight, last=last)

    def _check_weights(self) -> None:
        changed = {id(parameter) for parameter in self.changed()}
        if changed:
            names = [name for name, parameter in self.trained.model.named_parameters() if id(parameter) in changed]
            raise ConfigurationError(
                f"under parallel.strategy {self.name} weights that are trained must be changed by the optimizer alone, "
                f"on the servers, got a model or a loss that changes {', '.join(names[:3])}"
                f"{' and more' if len(names) > 3 else ''} while it is computed, which the servers would undo: compute "
                "with a function of the weights, as torch.nn.utils.parametrizations does, or take another strategy"
            )

    def changed(self) -> list[nn.Parameter]:
        """Return the parameters that are known to have changed since they were fetched."""
        raise NotImplementedError

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """See `Strategy.start_epoch`."""
        super().start_epoch(trained, epoch)
        self.parameters = self.trained_parameters()

    def synchronize_metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        """See `Strategy.synchronize_metrics`."""
        result: dict[str, float] = self.ranks.broadcast_object(metrics)
        # Send the servers what only the workers have updated, so that a server can also validate.
        model, average = self.trained.model, self.trained.average
        extra = [] if average is None else [*average.parameters(), *average.buffers()]
        extra += differing(untrained(model, self.trained.optimizer), self.ranks)
        broadcast_tensors([*model.buffers(), *extra], self.ranks)
        return result

    def broadcast_weights(self, buckets: Sequence[Bucket], parameters: Sequence[nn.Parameter]) -> None:
        """Send the servers' weights to every rank; a collective.

        Args:
            buckets: The buckets of all servers.
            parameters: The result of `trained_parameters`.
        """
        weights = [take_weights(bucket, parameters) for bucket in buckets]
        handles = [
            self.ranks.broadcast_async(elements, self.servers[bucket.server])
            for bucket, elements in zip(buckets, weights, strict=True)
        ]
        for bucket, elements, handle in zip(buckets, weights, handles, strict=True):
            handle.wait()
            put_weights(bucket, elements, parameters)

    def end_epoch(self) -> None:
        """See `Strategy.end_epoch`.

        Raises:
            ConfigurationError: A parameter was unfrozen during the epoch, so the servers don't train it.
        """
        super().end_epoch()
        thawed = len(set(map(id, self.trained_parameters())) - set(map(id, self.parameters)))
        if self.trains and thawed > 0:
            raise ConfigurationError(
                f"under parallel.strategy {self.name} layers must be thawed between two epochs, got {thawed} "
                "parameters that have come to need a gradient within one, which the servers don't train: do it before "
                "super().step()"
            )

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that servers train, in order."""
        return [parameter for parameter in parameters_of(self.trained.optimizer) if parameter.requires_grad]

    def buckets(self, parameters: list[nn.Parameter], *, can_be_cut: bool) -> list[Bucket]:
        """Divide parameters among the servers.

        Args:
            parameters: The result of `trained_parameters`.
            can_be_cut: Whether contiguous parameters without sparse gradients may be cut.
        """
        sparse = _sparse_parameters(self.trained.model)
        return assign_parameters(
            [
                Placed(
                    parameter.numel(),
                    parameter.dtype,
                    can_be_cut and parameter.is_contiguous() and parameter not in sparse,
                    parameter in sparse,
                )
                for parameter in parameters
            ],
            len(self.servers),
        )


def _sparse_parameters(model: nn.Module) -> set[Tensor]:
    """Return the parameters with sparse gradients."""
    tables = (layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
    return {table.weight for table in tables if table.sparse}
