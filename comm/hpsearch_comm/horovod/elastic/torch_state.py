"""Models, optimizers, samplers and schedulers that can be restored."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.horovod.elastic.sampler import ElasticSampler
from hpsearch_comm.horovod.elastic.state import ObjectState
from hpsearch_comm.horovod.objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState"]


class TorchState(ObjectState):
    """Models, optimizers, samplers, schedulers and other objects, as attributes.

    Args:
        model: A model, or None.
        optimizer: An optimizer, or None.
        **objects: Become attributes of these names. Of objects with a `state_dict`, such as more models and optimizers,
            an `ElasticSampler` or a scheduler, the state is saved; of others a copy.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **objects: Any
    ) -> None:
        everything = {"model": model, "optimizer": optimizer, **objects}
        self._stateful = [name for name, value in everything.items() if _is_stateful(value)]
        for name in self._stateful:
            setattr(self, name, everything.pop(name))
        super().__init__(**everything)
        self._states: dict[str, Any] = {}
        self._save_states()

    def save(self) -> None:
        """Save all states and copies of other objects."""
        self._save_states()
        super().save()

    def restore(self) -> None:
        """Restore all states and objects, and clear gradients: they belong to the failed step."""
        for name, state in copy.deepcopy(self._states).items():
            value = getattr(self, name)
            if isinstance(value, torch.optim.Optimizer):
                load_exactly(value, state)
            else:
                value.load_state_dict(state)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                value.zero_grad()
        super().restore()

    def sync(self) -> None:
        """Copy rank 0's states and objects to every rank, and save them; a collective."""
        for name in self._stateful:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                state = value.state_dict()
                tensors = {key: item for key, item in state.items() if isinstance(item, torch.Tensor)}
                other_items = {key: item for key, item in state.items() if key not in tensors}
                broadcast_parameters(tensors, root_rank=0)
                if broadcast_object(bool(other_items), name=f"elastic_{name}"):
                    value.load_state_dict(state | broadcast_object(other_items, name=f"elastic_{name}"))
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_object(value.state_dict(), name=f"elastic_{name}"))
        super().sync()
        # Behind the last collective: else one that fails would leave a part of rank 0's states to be put back to.
        self._save_states()

    def reset(self) -> None:
        """Divide the remaining rows of samplers among the ranks that have met again."""
        for name in self._stateful:
            if isinstance(getattr(self, name), ElasticSampler):
                getattr(self, name).reset()

    def _save_states(self) -> None:
        self._states = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._stateful}


def _is_stateful(value: Any) -> bool:
    """Whether it is put back in place: a copy of a scheduler would go on with a copy of its optimizer."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
