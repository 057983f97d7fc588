"""A server's part of an optimizer: during an epoch, the optimizer object trains pieces of parameters.

It is the user's own optimizer object, so its class, its settings, and changes of its rate apply to the pieces. Between
epochs the optimizer has its parameters back, with the state from all servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.broadcast import broadcast_state
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS, Layerwise
from hpsearch_trainers.strategies.common_state import common_entries
from hpsearch_trainers.strategies.placement import Piece

_OF_ELEMENTS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_OF_PARAMETERS = (*_OF_ELEMENTS, "Adafactor", "Muon", "SparseAdam")
"""torch's optimizers that update each parameter independently. LBFGS, for example, does not."""


def trains_elements(optimizer: Optimizer) -> bool:
    """Return whether an optimizer updates each element of a parameter independently; known for torch's optimizers."""
    return _is_of_torch(optimizer, _OF_ELEMENTS)


def trains_each_parameter(optimizer: Optimizer) -> bool:
    """Return whether an optimizer updates each parameter independently.

    This is known for torch's optimizers, LARS and LAMB. Another optimizer must have an attribute
    `trains_each_parameter = True`.
    """
    is_known = _is_of_torch(optimizer, _OF_PARAMETERS) or isinstance(optimizer, Layerwise)
    return is_known or bool(getattr(optimizer, "trains_each_parameter", False))


def steps_in_parts(optimizer: Optimizer) -> bool:
    """Return whether stepping the parameters one after another equals one step with all of them.

    This is known for torch's optimizers, LARS and LAMB. Others may keep state for all parameters, such as a step count
    in a group, which would advance several times.
    """
    return _is_of_torch(optimizer, _OF_PARAMETERS) or type(optimizer) in (LARS, LAMB)


def _is_of_torch(optimizer: Optimizer, names: Iterable[str]) -> bool:
    # Exactly this class: a subclass may behave differently.
    return any(type(optimizer) is getattr(torch.optim, name, None) for name in names)


class OptimizerShard:
    """Replaces an optimizer's parameters by pieces of them until `close`.

    Args:
        optimizer: The optimizer with all parameters; it may have state from a checkpoint.
        parameters: The parameters that the servers train, by index. Others are removed until `close`.
        pieces: This server's pieces.

    Attributes:
        piece_parameters: A parameter for each piece; it shares memory with the model's parameter.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter], pieces: Sequence[Piece]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._all = [list(group["params"]) for group in optimizer.param_groups]
        self._state = dict(optimizer.state)
        self.piece_parameters = {piece: _piece_parameter(parameters[piece.number], piece) for piece in pieces}
        of_parameter: dict[int, list[Piece]] = {}
        for piece in pieces:
            of_parameter.setdefault(id(parameters[piece.number]), []).append(piece)
        optimizer.state.clear()
        optimizer.state.update(common_entries(self._state))
        for group, members in zip(optimizer.param_groups, self._all, strict=True):
            own_pieces = [(member, piece) for member in members for piece in of_parameter.get(id(member), ())]
            group["params"] = [self.piece_parameters[piece] for _, piece in own_pieces]
            for member, piece in own_pieces:
                if member in self._state:
                    optimizer.state[self.piece_parameters[piece]] = _cut(self._state[member], member, piece)

    def close(self) -> list[Any]:
        """Restore the optimizer's parameters.

        Returns:
            The state of the pieces, for `assemble`.
        """
        saved = [
            [
                piece.number,
                piece.start,
                {name: _dense(value) for name, value in self._optimizer.state[parameter].items()},
            ]
            for piece, parameter in self.piece_parameters.items()
            if parameter in self._optimizer.state
        ]
        common = common_entries(self._optimizer.state)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state | common)
        for group, members in zip(self._optimizer.param_groups, self._all, strict=True):
            group["params"] = members
        return saved


def assemble(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], group: Group, servers: Iterable[int], states: list[Any]
) -> None:
    """Load the servers' state into an optimizer, on every rank; a collective.

    Args:
        optimizer: The optimizer with all parameters.
        parameters: The parameters that the servers train, by index.
        group: All ranks.
        servers: The ranks of the servers.
        states: On a server, the result of `OptimizerShard.close`; ignored on other ranks.
    """
    device = parameters[0].device
    states_by_number: dict[int, dict[int, Mapping[str, Any]]] = {}
    for server in servers:
        for number, start, state in broadcast_state(states, group, server, device, "the optimizer's state"):
            states_by_number.setdefault(number, {})[start] = state
    for number, parameter in enumerate(parameters):
        optimizer.state.pop(parameter, None)
        if number in states_by_number:
            optimizer.state[parameter] = _join(
                [states_by_number[number][start] for start in sorted(states_by_number[number])], parameter
            )


def _dense(value: Any) -> Any:
    # The velocity of sparse gradients, for example, soon has all rows. A dense tensor gives the same numbers.
    return value.to_dense() if isinstance(value, Tensor) and value.layout is not torch.strided else value


def _piece_parameter(parameter: nn.Parameter, piece: Piece) -> nn.Parameter:
    if piece.stop - piece.start == parameter.numel():
        return parameter
    return nn.Parameter(parameter.detach().view(-1)[piece.start : piece.stop])


def _cut(state: Mapping[str, Any], parameter: Tensor, piece: Piece) -> dict[str, Any]:
    """Return a piece's part of a parameter's state: tensors of the parameter's shape are sliced, others copied."""
    if piece.stop - piece.start == parameter.numel():
        return dict(state)

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.shape == parameter.shape:
            return value.reshape(-1)[piece.start : piece.stop].clone()
        return value.clone()

    return {name: cut(value) for name, value in state.items()}


def _join(parts: Sequence[Mapping[str, Any]], parameter: Tensor) -> dict[str, Any]:
    """Join the states of a parameter's pieces; the inverse of `_cut`."""
    first = parts[0]
    if len(parts) == 1:
        return dict(first)

    def joined(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        return torch.cat([part[name] for part in parts]).view(parameter.shape)

    return {name: joined(name, value) for name, value in first.items()}
