"""What optimizers whose gradients, or steps, are those of all ranks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.compression import Compressor
from hpsearch_comm.horovod.process_sets import ProcessSet
from hpsearch_comm.horovod.request import ReduceOp

__all__ = ["Distributed"]


class Distributed(torch.optim.Optimizer):
    """What both kinds have in common. The class of the given optimizer comes behind it, and does the steps.

    Attributes:
        backward_passes_per_step: Backward passes before a step.
        process_set: The ranks that reduce gradients.
    """

    backward_passes_per_step: int
    process_set: ProcessSet
    _compression: type[Compressor]
    _op: ReduceOp
    _predivide: float
    _sparse_as_dense: bool
    _parameter_names: dict[torch.Tensor, str]

    def _begin(self, groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
        raise NotImplementedError

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before a step; between two steps."""
        self._check_passes(passes)
        self.backward_passes_per_step = passes

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the gradients of the group's parameters would differ between ranks.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"a group of parameters can't be added to a DistributedOptimizer, got {sorted(param_group)}: their "
            "gradients wouldn't be reduced. Add it to an optimizer of the same class, and wrap that"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied or pickled.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a DistributedOptimizer can't be copied or pickled, as it belongs to this process's rank: save its "
            "state_dict()"
        )

    def _check_passes(self, passes: int) -> None:
        if type(passes) is not int or passes < 1:
            raise UsageError(f"backward_passes_per_step must be an integer of 1 or more, got {passes!r}")

    def _steps(self) -> list[torch.Tensor]:
        return [parameter for settings in self.param_groups for parameter in settings["params"]]
