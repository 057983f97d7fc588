"""Which parameters decay."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["decay_groups"]

_NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def decay_groups(model: nn.Module, weight_decay: float, *, biases: bool = True) -> list[dict[str, Any]]:
    """Divide a model's parameters into those that decay and those that don't, as groups for any optimizer.

    The scales and shifts of normalisations don't decay (Goyal et al. 2017, section 5.1). For LARS and LAMB, whose
    authors leave out biases as well, `biases=False` puts these with them; both take plain steps for that group.

    Args:
        model: Its parameters that need gradients are divided, each once.
        weight_decay: Of those that decay.
        biases: Whether biases do.

    Returns:
        Two groups: `weight_decay` as given, and `weight_decay` 0 with `adapt` False. The second may have no parameters.
    """
    plain: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            exempt = isinstance(module, _NORMS) or (not biases and name.rpartition("_")[2].startswith("bias"))
            (plain if exempt else decaying).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0, "adapt": False}]
