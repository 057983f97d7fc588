"""Parameter groups with and without weight decay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

_NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)

_HOLDERS = (nn.ParameterList, nn.ParameterDict, ParametrizationList)


def decay_groups(model: nn.Module, weight_decay: float, *, biases: bool = True) -> list[dict[str, Any]]:
    """Return a model's parameters in two groups for any optimizer: with and without weight decay.

    Scales and shifts of normalizations don't decay (Goyal et al. 2017, section 5.1). The authors of LARS and LAMB
    exclude biases as well: `biases=False`. Both optimizers take plain steps for that group.

    Args:
        model: Its parameters that require gradients are divided; a shared parameter is listed once.
        weight_decay: Weight decay of the first group.
        biases: Whether biases decay. Biases are parameters with a word in their name that starts with `bias`, as in
            torch.

    Returns:
        Two groups: one with this `weight_decay`; one with `weight_decay` 0 and `adapt` False, which may be empty.
    """
    plain: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    seen: set[int] = set()
    for owner, name, parameter in _owned(model):
        if not parameter.requires_grad or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        exempt = isinstance(owner, _NORMS) or (not biases and _is_bias(name))
        (plain if exempt else decaying).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0, "adapt": False}]


def _owned(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield each parameter with the module that owns it, and its name there.

    Containers aren't owners: the name of a parameter in a ParameterList starts with the list's name, and that of a
    parametrized parameter with its original name.
    """
    for path, module in model.named_modules():
        owner, prefix = path, ""
        if path and isinstance(module, _HOLDERS):
            owner, _, prefix = path.rpartition(".")
            if isinstance(module, ParametrizationList):
                owner = owner.removesuffix("parametrizations").removesuffix(".")
        for name, parameter in module.named_parameters(recurse=False):
            yield model.get_submodule(owner), f"{prefix}_{name}", parameter


def _is_bias(name: str) -> bool:
    """Return whether a name is a bias's: `bias`, `in_proj_bias`, `bias_k` (attention), `bias_hh_l0_reverse` (LSTM)."""
    return any(word.startswith("bias") for word in name.split("_"))
