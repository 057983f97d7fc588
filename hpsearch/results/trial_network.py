"""The network of a trial: its architecture, its cost, and the weights of the trial's value.

A checkpoint contains architecture and weights if it is a mapping with "model" and "architecture", as a Trainer writes
it. Otherwise, or without a checkpoint, a Trainer builds the network again, without its weights.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from hpsearch.config.import_paths import is_table
from hpsearch.errors import HpsearchError, Interrupted, TrainableError, UnreadableCheckpointError, exception_line
from hpsearch.trainable.checkpoints import read_state
from hpsearch.trainable.trainables import resolve_trainable
from hpsearch.trial import TrialRow

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hpsearch.results.study import Study
    from hpsearch_trainers.architectures import Costs, Layer

T = TypeVar("T")

_ARGUMENTS = frozenset({"value", "inputs", "outputs", "stem", "head"})
_DEFAULT_ROWS = 32
_HOW = (
    "a function's checkpoint may have it as {'model': model.state_dict(), 'architecture': architecture_of(model)}, of "
    "a network that hpsearch_trainers.architectures.network made"
)
_NONE_KEPT = (
    "no checkpoint was saved with its value, or it wasn't kept: in a sweep, checkpoints.keep: all keeps those of all "
    "trials, and checkpoints.every: 1 saves one after each iteration"
)


@dataclass(frozen=True)
class TrainingStep:
    """Assumptions about a training step, to estimate its memory."""

    rows: int
    """Number of rows of a batch on one worker."""
    reported: bool
    """Whether the trial's batch size is known."""
    optimizer: str
    """Class name of the optimizer; empty if unknown."""
    copies: int
    """Number of values that the optimizer keeps for each weight."""


@dataclass(frozen=True)
class TrialNetwork:
    """What is known of a trial's network."""

    study: Study
    row: TrialRow
    checkpoint: Path | None
    """Checkpoint of the trial's value, as the user saved it."""
    architecture: Mapping[str, Any] | None
    """Keyword arguments of `network`, `costs`, `layers` and `standalone`."""
    built_again: bool
    """Whether the trainable built the architecture again, as no checkpoint contains it."""
    weights: Mapping[str, Tensor] | None
    """The validated `state_dict`."""
    weights_are: str
    """Key of the weights in the checkpoint: "average" or "model"."""
    step: TrainingStep
    unknown: str
    """Why there is no architecture, and what to do; empty if there is one."""
    no_weights: str
    """Why there are no weights; empty if there are."""

    @property
    def where(self) -> str:
        """The trial's name, at the start of error messages."""
        return f"{self.study.directory}: trial {self.row.number}"

    def layers(self) -> Layer:
        """Return the layers of the network.

        Raises:
            HpsearchError: The architecture is unknown, or the network can no longer be built.
        """
        from hpsearch_trainers.architectures import layers

        return self._built(layers)

    def costs(self) -> Costs:
        """Return the costs of the network.

        Raises:
            HpsearchError: The architecture is unknown, or the network can no longer be built.
        """
        from hpsearch_trainers.architectures import costs

        return self._built(costs, batch=self.step.rows, optimizer_copies=self.step.copies)

    def source(self) -> str:
        """Return the source code of a file that builds the network with only torch.

        Raises:
            HpsearchError: The architecture is unknown, or has no source code.
        """
        from hpsearch_trainers.architectures import standalone

        return self._built(standalone)

    def module(self) -> nn.Module:
        """Return the network with its weights, on the CPU and in evaluation mode.

        Raises:
            HpsearchError: There are no weights, or they don't match the network.
        """
        import torch

        from hpsearch_trainers.architectures import network

        if self.architecture is None or self.weights is None:
            raise HpsearchError(f"{self.where} must have a network with its weights: {self.unknown or self.no_weights}")
        with torch.random.fork_rng(devices=[]):  # the initial weights aren't kept
            module: nn.Module = self._built(network)
        try:
            module.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            problem = " ".join(line.strip() for line in str(error).splitlines()[1:3]) or str(error)
            raise HpsearchError(
                f"{self.checkpoint}: the weights of trial {self.row.number} must fit the network that its architecture "
                f"builds now, but: {problem} Has an operation of your own changed since it was trained? Put it back as "
                "it was then."
            ) from error
        return module.eval()

    def _built(self, build: Callable[..., T], **more: Any) -> T:
        from hpsearch_trainers.architectures import ArchitectureError

        if self.architecture is None:
            raise HpsearchError(f"{self.where}: {self.unknown}")
        try:
            try:
                return build(**self.architecture, **more)
            except ArchitectureError as unknown:
                # The user's own operations are registered by importing the trainable's module.
                try:
                    _trainable(self.study)
                except TrainableError as error:
                    raise HpsearchError(f"{self.where}: {unknown}. Operations of your own: {error}") from error
                return build(**self.architecture, **more)
        except ValueError as error:
            raise HpsearchError(f"{self.where}: {error}") from error


def trial_network(study: Study, trial: int | None = None) -> TrialNetwork:
    """Return what is known of a trial's network.

    Args:
        study: The study.
        trial: Number of the trial; None: the best trial, if there is one goal.

    Raises:
        HpsearchError: There is no such trial, or its checkpoint can't be read.
    """
    from hpsearch_trainers.architectures import weights_in

    row = study.row(trial)
    path, state, no_weights = study.checkpoint_path(row), None, ""
    if path is None:
        lost = row.checkpoint is not None
        no_weights = "its checkpoint was deleted or is damaged" if lost else _NONE_KEPT
    else:
        try:
            state = read_state(study.directory / str(row.address or row.checkpoint))
        except UnreadableCheckpointError as error:
            path, no_weights = None, str(error)
    entries = state if isinstance(state, Mapping) else {}
    architecture, weights = entries.get("architecture"), weights_in(entries)
    if weights is None and not no_weights:
        no_weights = "its checkpoint has no mapping of weights as 'model'"
    unknown, built_again = "", architecture is None
    if built_again:
        architecture, built, unknown = _built_again(study, row)
        entries = {**built, **entries}
    elif not isinstance(architecture, Mapping) or set(architecture) - _ARGUMENTS or "value" not in architecture:
        architecture, unknown = None, f"'architecture' in {path} must be what architecture_of gives: {_HOW}"
    name, state_dict = ("", None) if weights is None else weights
    step = _training_step(study, row, entries)
    return TrialNetwork(study, row, path, architecture, built_again, state_dict, name, step, unknown, no_weights)


def _built_again(study: Study, row: TrialRow) -> tuple[Mapping[str, Any] | None, Mapping[str, Any], str]:
    """Build a trial's Trainer again, to get the architecture of its network.

    Returns:
        The architecture; the optimizer's entries of a checkpoint; and why there is no architecture.
    """
    from hpsearch_trainers.architectures import architecture_of
    from hpsearch_trainers.trainer import Trainer

    sweep = study.sweep
    if sweep.program is not None or sweep.command is not None:
        return None, {}, "what a script trains isn't known; its checkpoint is what the script wrote"
    if sweep.trainable is None:
        return None, {}, "nothing is known of the networks of an ask-and-tell study"
    if is_table(sweep.trainable):
        return None, {}, "a recorded table trains nothing"
    try:
        trainable = _trainable(study)
    except TrainableError as error:
        return None, {}, str(error)
    if not (isinstance(trainable, type) and issubclass(trainable, Trainer)):
        return None, {}, f"{sweep.trainable} isn't a Trainer, and no checkpoint names an architecture: {_HOW}"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            trainer = trainable(SimpleNamespace(params=sweep.parameters.nest(row.params)))
            for parameter in trainer.model.parameters():
                parameter.grad = parameter.detach().clone().zero_()
            trainer.optimizer.step()  # creates the optimizer's state
    except Interrupted:
        raise
    except Exception as error:  # any exception of the user's code
        return None, {}, f"{sweep.trainable} can't build it again: {exception_line(error)}"
    architecture = architecture_of(trainer.model)
    if architecture is None:
        return None, {}, f"the model of {sweep.trainable} isn't one that hpsearch_trainers.architectures.network made"
    optimizer_state = {
        "optimizer": trainer.optimizer.state_dict(),
        "optimizer_class": type(trainer.optimizer).__qualname__,
    }
    return architecture, optimizer_state, ""


def _trainable(study: Study) -> Any:
    spec, source = study.sweep.trainable, study.sweep.source
    if spec is None or is_table(spec):
        raise TrainableError("import the module that registers them first; this study names none")
    if spec.startswith("__main__:"):
        raise TrainableError(f"the trainable {spec!r} was given from Python and can't be imported: put it into a file")
    folder = study.provenance.get("directory", "")
    beside = "" if source is None else str(Path(folder, source).resolve().parent)
    folders = [path for path in (str(Path.cwd()), folder, beside) if path]
    with contextlib.redirect_stdout(sys.stderr):
        return resolve_trainable(spec, folders)


def _training_step(study: Study, row: TrialRow, state: Mapping[str, Any]) -> TrainingStep:
    """Return the assumptions about a step, from the trial's reports and from a checkpoint or its rebuilt equivalent."""
    rows = study.metrics_of(row).get("global_batch", math.nan)
    reported = math.isfinite(rows) and rows >= 1
    on_one = math.ceil(rows / row.width) if reported else _DEFAULT_ROWS
    optimizer = state.get("optimizer")
    per_parameter = optimizer.get("state") if isinstance(optimizer, Mapping) else None
    if not isinstance(per_parameter, Mapping):
        return TrainingStep(on_one, reported, "", 1)
    # Tensors, except counters.
    copies = max(
        (sum(getattr(value, "dim", int)() > 0 for value in entries.values()) for entries in per_parameter.values()),
        default=0,
    )
    return TrainingStep(on_one, reported, str(state.get("optimizer_class", "")), copies)
