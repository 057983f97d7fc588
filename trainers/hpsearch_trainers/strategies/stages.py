"""Cut a model into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from hpsearch_comm.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a model, which are called in sequence."""

    layers: tuple[tuple[nn.Module, ...], ...]
    """The layers of each stage, in the order in which they are called."""
    owner: dict[str, int]
    """The stage of each parameter, and of each buffer of a layer, by its name in the model."""
    shared: str
    """Message that lists the parameters and buffers in several stages; empty if there are none."""


def cut(model: nn.Module, named: Sequence[nn.Module] | None, count: int) -> Stages:
    """Cut a model into stages so that the largest stage, by bytes of parameters, is as small as possible.

    Args:
        model: An nn.Sequential; nested ones are cut as well. With `named`, any model.
        named: See `Parts.pipeline`.
        count: Number of stages.

    Raises:
        ConfigurationError: The model has too few layers, or `named` doesn't match its parameters.
    """
    layers = list(named) if named is not None else list(_layers(_sequential(model)))
    if len(layers) < count:
        raise ConfigurationError(
            f"a pipeline of {count} workers takes a model of {count} layers or more, got {len(layers)}: lower "
            "resources.workers_per_trial, or name smaller modules in Parts.pipeline"
        )
    sizes = [sum(parameter.nbytes for parameter in layer.parameters()) for layer in layers]
    starts = cut_evenly(sizes, count)
    stages = tuple(tuple(layers[start:end]) for start, end in zip(starts, [*starts[1:], len(layers)], strict=True))
    _check_all(model, layers)
    stages_of: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        for tensor in {id(tensor) for layer in stage for tensor in (*layer.parameters(), *layer.buffers())}:
            stages_of.setdefault(tensor, []).append(number)
    named_tensors = (*model.named_parameters(), *model.named_buffers())
    numbers = {name: stages_of[id(tensor)] for name, tensor in named_tensors if id(tensor) in stages_of}
    shared = [f"{name} in stages {' and '.join(map(str, found))}" for name, found in numbers.items() if len(found) > 1]
    return Stages(stages, {name: first for name, (first, *_) in numbers.items()}, ", ".join(shared))


def cut_evenly(sizes: Sequence[int], count: int) -> list[int]:
    """Cut a list of sizes into non-empty runs so that the largest sum of a run is as small as possible.

    Args:
        sizes: The sizes, at least 0.
        count: Number of runs, at most the number of sizes.

    Returns:
        The start index of each run. Among equally good solutions, earlier runs are longer.
    """
    least, most = max(sizes), sum(sizes)
    while least < most:
        middle = (least + most) // 2
        if len(_runs(sizes, middle, 1)) <= count:
            most = middle
        else:
            least = middle + 1
    return _runs(sizes, least, count)


def _runs(sizes: Sequence[int], most: int, count: int) -> list[int]:
    """Fill runs greedily up to the sum `most`, but leave a size for each remaining run; return the start indices."""
    starts, total = [0], 0
    for index, size in enumerate(sizes):
        must_start = len(sizes) - index == count - len(starts)
        if index > 0 and (total + size > most or must_start):
            starts.append(index)
            total = 0
        total += size
    return starts


def _sequential(model: nn.Module) -> nn.Sequential:
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward or hooked(model):
        raise ConfigurationError(
            "a pipeline takes an nn.Sequential without hooks, or a model whose parts Parts.pipeline names, got "
            f"{type(model).__name__}: give Parts(pipeline=[...]), modules with its parameters that compute the same "
            "when they are called one after another"
        )
    return model


def _layers(model: nn.Sequential) -> Iterator[nn.Module]:
    for layer in model:
        if type(layer) is nn.Sequential and not hooked(layer):
            yield from _layers(layer)
        else:
            yield layer


def hooked(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks."""
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )


def _check_all(model: nn.Module, layers: Iterable[nn.Module]) -> None:
    in_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in in_layers]
    if missing:
        names = ", ".join(missing[:3])
        raise ConfigurationError(
            f"the modules of Parts.pipeline must have all parameters of the model, got none with {names}"
            f"{' and more' if len(missing) > 3 else ''}: add the modules that use them"
        )
    foreign = in_layers - {id(parameter) for parameter in model.parameters()}
    if foreign:
        raise ConfigurationError(
            f"the modules of Parts.pipeline must have parameters of the model alone, got {len(foreign)} others, which "
            "would be neither trained nor saved: make them of the model's own modules"
        )
