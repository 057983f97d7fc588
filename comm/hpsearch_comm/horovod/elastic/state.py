"""State that a training can restore: models, optimizers, samplers, schedulers and other objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hpsearch_comm.data_parallel.optimizer_state import load_exactly
from hpsearch_comm.horovod.elastic.sampler import ElasticSampler
from hpsearch_comm.horovod.missing import IN_ELASTIC_STATE, missing_from
from hpsearch_comm.horovod.objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__getattr__ = missing_from(__name__, IN_ELASTIC_STATE)


class State:
    """State that a training can restore. Subclass it for your own kind.

    Attributes:
        commits: Number of commits.
    """

    def __init__(self) -> None:
        self.commits = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Add functions that are called when the ranks have formed a new job."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Reset the state and call the reset callbacks, after the ranks have formed a new job."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the current state; call it on every rank at the same point of the training."""
        self.save()
        self.commits += 1

    def check_host_updates(self) -> None:
        """Do nothing: the list of hosts is fixed."""

    def save(self) -> None:
        """Save the current state."""
        raise NotImplementedError(f"{type(self).__name__} must have a method save()")

    def restore(self) -> None:
        """Restore the saved state."""
        raise NotImplementedError(f"{type(self).__name__} must have a method restore()")

    def sync(self) -> None:
        """Copy rank 0's state to every rank, and save it; a collective."""
        raise NotImplementedError(f"{type(self).__name__} must have a method sync()")

    def reset(self) -> None:
        """Adapt the state to the ranks of a new job."""


class ObjectState(State):
    """Python objects, as attributes.

    Args:
        **objects: Become attributes of these names; they must be picklable.
    """

    _stateful: frozenset[str] = frozenset()
    """Names of the objects whose `state_dict` is saved; of the others, a copy is."""

    def __init__(self, **objects: Any) -> None:
        super().__init__()
        self._names = list(objects)
        for name, value in objects.items():
            setattr(self, name, value)
        ObjectState.save(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        """Save all states and copies of other objects."""
        values = {name: getattr(self, name) for name in self._names}
        self._saved = copy.deepcopy(
            {name: value.state_dict() if name in self._stateful else value for name, value in values.items()}
        )

    def restore(self) -> None:
        """Restore all states and objects, and clear gradients: they belong to the failed step."""
        for name, saved in copy.deepcopy(self._saved).items():
            if name not in self._stateful:
                setattr(self, name, saved)
                continue
            value = getattr(self, name)
            if isinstance(value, torch.optim.Optimizer):
                load_exactly(value, saved)
            else:
                value.load_state_dict(saved)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                value.zero_grad()

    def sync(self) -> None:
        """Copy rank 0's states and objects to every rank, and save them; a collective."""
        for name in self._names:
            if name in self._stateful:
                _sync_state(name, getattr(self, name))
        objects = {name: getattr(self, name) for name in self._names if name not in self._stateful}
        for name, value in broadcast_object(objects, name="elastic_state").items():
            setattr(self, name, value)
        # After the last collective: if one fails, the saved states must not be a mix of old states and rank 0's.
        ObjectState.save(self)


class TorchState(ObjectState):
    """Models, optimizers, samplers, schedulers and other objects, as attributes.

    Args:
        model: A model, or None.
        optimizer: An optimizer, or None.
        **objects: Become attributes of these names. If an object has a `state_dict`, as models, optimizers, schedulers
            and `ElasticSampler` have, its state is saved; otherwise a copy of the object is saved.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **objects: Any
    ) -> None:
        everything = {"model": model, "optimizer": optimizer, **objects}
        self._stateful = frozenset(name for name, value in everything.items() if _is_stateful(value))
        super().__init__(**everything)

    def reset(self) -> None:
        """Divide the remaining rows of samplers among the ranks of the new job."""
        for name in self._stateful:
            if isinstance(getattr(self, name), ElasticSampler):
                getattr(self, name).reset()


def _is_stateful(value: Any) -> bool:
    """Return whether a value is saved by its state_dict: a copy of a scheduler would use a copy of its optimizer."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _sync_state(name: str, value: Any) -> None:
    """Copy rank 0's state of a model, an optimizer or another object to every rank; a collective."""
    if isinstance(value, torch.nn.Module):
        state = value.state_dict()
        tensors = {key: item for key, item in state.items() if isinstance(item, torch.Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        other_items = {key: item for key, item in state.items() if key not in tensors}
        other_items = broadcast_object(other_items, name=f"elastic_{name}")
        if other_items:
            value.load_state_dict(state | other_items)
    elif isinstance(value, torch.optim.Optimizer):
        broadcast_optimizer_state(value, root_rank=0)
    else:
        value.load_state_dict(broadcast_object(value.state_dict(), name=f"elastic_{name}"))
