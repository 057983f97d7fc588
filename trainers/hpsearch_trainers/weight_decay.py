"""Parameter groups with and without weight decay."""

from __future__ import annotations

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
    of_norms = {
        id(scale)
        for norm in model.modules()
        if isinstance(norm, _NORMS)
        for name, scale in norm.named_parameters()
        if "." not in name or name.startswith("parametrizations.")
    }
    plain: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exempt = id(parameter) in of_norms or (not biases and _is_bias(_own_name(model, name)))
            (plain if exempt else decaying).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0, "adapt": False}]


def _own_name(model: nn.Module, name: str) -> str:
    """Return the last part of a parameter's name; in a container, such as a ParameterList, with the container's."""
    path, _, own_name = name.rpartition(".")
    return f"{path.rpartition('.')[2]}_{own_name}" if isinstance(model.get_submodule(path), _HOLDERS) else own_name


def _is_bias(name: str) -> bool:
    """Return whether a name is a bias's: `bias`, `in_proj_bias`, `bias_k` (attention), `bias_hh_l0_reverse` (LSTM)."""
    return any(word.startswith("bias") for word in name.split("_"))
