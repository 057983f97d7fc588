"""Mutations of architectures that hypothesis draws, and networks whose weights are no fresh ones."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from tests.trainers.architectures.drawn import CHANGES, KEEPS

Place = tuple[str | int, ...]


def grown(draw: st.DrawFn, value: Any) -> Any:
    """Enlarge some numbers of channels and some kernels."""
    if isinstance(value, list):
        return [grown(draw, one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: grown(draw, one) for key, one in value.items()}
    for key, step in (("channels", st.integers(0, 3)), ("kernel", st.sampled_from([0, 0, 2, 4]))):
        if isinstance(found.get(key), int) and "stride" not in found:
            found[key] += draw(step)
    return found


def chains(value: Any, place: Place = ()) -> list[Place]:
    """Return the paths of the lists of layers in a value; a list of a node's inputs isn't one."""
    if isinstance(value, list):
        found = [place] if not any(isinstance(one, dict) and "from" in one for one in value) else []
        return found + [inner for at, one in enumerate(value) for inner in chains(one, (*place, at))]
    if isinstance(value, dict):
        return [inner for key, one in value.items() for inner in chains(one, (*place, key))]
    return []


def edited(value: Any, place: Place, edit: Any) -> Any:
    """Return a copy in which the item at a path is replaced."""
    if not place:
        return edit(value)
    head, *rest = place
    if isinstance(value, list):
        return [edited(one, tuple(rest), edit) if at == head else one for at, one in enumerate(value)]
    return {key: edited(one, tuple(rest), edit) if key == head else one for key, one in value.items()}


@st.composite
def mutations(draw: st.DrawFn, value: list[Any]) -> list[Any]:
    """Draw a chain with some layers enlarged, inserted, removed or replaced."""
    for _ in range(draw(st.integers(0, 3))):
        what = draw(st.sampled_from(["grow", "grow", "put in", "put in", "take out", "replace"]))
        place = draw(st.sampled_from(chains(value)))
        new = draw(st.sampled_from(KEEPS if len(place) > 0 else KEEPS + CHANGES))
        at = draw(st.integers(0, 5))
        if what == "grow":
            value = grown(draw, value)
        elif what == "put in":
            value = edited(value, place, lambda items, at=at, new=new: [*items[:at], new, *items[at:]])
        elif what == "take out":
            value = edited(value, place, lambda items, at=at: [*items[:at], *items[at + 1 :]])
        else:
            value = edited(value, place, lambda items, at=at, new=new: [*items[:at], new, *items[at + 1 :]])
    return value


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Set weights, biases and statistics of a network to values other than the initial ones; return it in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0, generator=generator)
        elif value.dim() > 1:
            value.normal_(0.0, (2 / value[0].numel()) ** 0.5, generator=generator)
        elif value.is_floating_point():
            value.normal_(0.3, 0.5, generator=generator)
    return model.eval()
