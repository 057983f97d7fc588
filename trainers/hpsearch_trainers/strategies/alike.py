"""Whether all ranks are to train the same in the same way, as far as each of them has a say in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hpsearch_comm import Group
from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts

__all__ = ["check_alike"]

_ADVICE = (
    "Build it, and change it between two epochs, alike on all ranks, by what all of them have, as the metrics of "
    "super().step() are"
)


def check_alike(model: nn.Module, optimizer: Optimizer, epoch: int, group: Group, *, rates: bool, states: bool) -> None:
    """See that all ranks train the same parameters with the same settings in the same epoch; a collective.

    Args:
        model: What is trained.
        optimizer: It trains them.
        epoch: Its number.
        group: The ranks.
        rates: Whether they have the same rates.
        states: Whether the optimizer of each has a state of all parameters.

    Raises:
        MismatchError: They don't; raised on all ranks.
    """
    lines = [f"epoch {epoch}", *describe_layouts(model.named_parameters())]
    names = {parameter: name for name, parameter in model.named_parameters()}
    for number, held in enumerate(optimizer.param_groups):
        lines.append(f"group {number} of the optimizer with {', '.join(_settings(optimizer, held, rates=rates))}")
        for one in held["params"]:
            kept = _kept(optimizer, one) if states else ""
            lines.append(f"parameter {names.get(one, 'of another model')} in group {number}{kept}")
    check_agreement(group, "what is trained", lines, _ADVICE)


def _settings(optimizer: Optimizer, held: Mapping[str, Any], *, rates: bool) -> Iterator[str]:
    if rates:
        yield f"lr {float(held['lr'])}"
    if _is_torchs(optimizer):
        yield from (f"{name} {held[name]}" for name in optimizer.defaults if name != "lr" and name in held)


def _kept(optimizer: Optimizer, parameter: nn.Parameter) -> str:
    if not _is_torchs(optimizer):
        return ""
    return f" with {', '.join(sorted(optimizer.state.get(parameter, ()))) or 'no state'}"


def _is_torchs(optimizer: Optimizer) -> bool:
    """Return whether it is one of torch's: others may keep what each rank counts for itself."""
    return type(optimizer).__module__.startswith("torch.optim.")
