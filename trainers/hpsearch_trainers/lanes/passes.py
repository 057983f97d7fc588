"""The passes of a model of all lanes over batches: through Python the first time, from a tape after that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane_tensor import LaneTensor
from hpsearch_trainers.lanes.losses import Losses, are_scores, cross_entropies
from hpsearch_trainers.lanes.output import Form, taken_apart
from hpsearch_trainers.lanes.rows import Rows
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.lanes.tape import Recorder, Tape

__all__ = ["EvaluationPasses", "TrainingPasses"]

_Autocast = Callable[[], AbstractContextManager[Any]]
_Gradients = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class _Recorded:
    tape: Tape
    form: Form | None
    """Of the output and the targets; None where the tape has the losses, too."""
    used: Sequence[bool] = ()
    """Of which tensors of these the losses gave gradients."""


class _Tapes:
    """What was recorded, by what batches differ in.

    Args:
        at_once: The first batch of a kind is recorded; else the second one, as it isn't known whether there will be
            others, and recording takes as long as some batches do from the tape.
    """

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded | None] = {}

    def get(self, kind: Hashable) -> _Recorded | None:
        """Give what was recorded of such a batch; None where there is nothing."""
        return self._recorded.get(kind)

    def recorder(self, kind: Hashable, rows: Tensor) -> Recorder | None:
        """Give what is to record this batch; None where it isn't to be recorded."""
        if (self._at_once or kind in self._seen) and kind not in self._recorded:
            return Recorder([rows])
        self._seen.add(kind)
        return None

    def keep(
        self,
        kind: Hashable,
        recorder: Recorder | None,
        results: _Gradients,
        form: Form | None,
        used: Sequence[bool] = (),
    ) -> None:
        """Keep what was recorded, if anything was."""
        if recorder is not None:
            tape = recorder.tape(results) if form is None or form.plain else None
            self._recorded[kind] = None if tape is None else _Recorded(tape, form, used)

    def forget(self) -> None:
        """Forget all: what the model reads beside tensors has changed."""
        self._recorded.clear()


class TrainingPasses:
    """Trains a shell, which is in training mode.

    Args:
        shell: The model.
        rows: Reads batches.
        losses: What is trained for.
        autocast: Makes the context of the forward passes.
        at_once: The first batch of a kind is recorded, not the second.
    """

    def __init__(self, shell: Shell, rows: Rows, losses: Losses, autocast: _Autocast, at_once: bool) -> None:
        self._shell = shell
        self._rows = rows
        self._losses = losses
        self._autocast = autocast
        self._tapes = _Tapes(at_once)
        self.forget = self._tapes.forget

    def __call__(self, rows: Tensor, share: float) -> tuple[Tensor, _Gradients]:
        """Give the mean loss of each lane's rows, (lanes,), and the gradients of the stacks of parameters.

        Args:
            rows: Their numbers, (lanes, n).
            share: By what each loss is multiplied before it is differentiated.

        Raises:
            ConfigurationError: A loss isn't one number.
            NotFusible: One pass can't be right for all lanes.
        """
        kind = (rows.shape, rows.stride(), share, self._losses.plain)
        known = self._tapes.get(kind)
        if known is None:
            return self._through_python(kind, rows, share)
        with torch.no_grad():
            given, kept = known.tape.forward(rows)
        if known.form is None:
            return given[0], given[1:]
        losses, of_each = self._of_each(known.form, given, share)
        if [one is not None for one in of_each] != known.used:
            raise NotFusible("its loss is of other parts of its model's output than in the step before")
        assert known.tape.backward is not None
        with torch.no_grad():
            return losses, known.tape.backward(kept, *_present(of_each))

    def _through_python(self, kind: Hashable, rows: Tensor, share: float) -> tuple[Tensor, _Gradients]:
        recorder = self._tapes.recorder(kind, rows)
        with recorder or nullcontext():
            inputs, targets = self._rows(rows)
            with self._autocast():
                output: Any = self._shell(inputs)
            if self._losses.plain and are_scores(output):
                losses, coming = cross_entropies(output.stack.detach(), targets.stack, share)
                gradients = self._back([output.stack], [coming])
                self._tapes.keep(kind, recorder, [losses, *gradients], None)
                return losses, gradients
        form, held = taken_apart((output, targets))
        losses, of_each = self._of_each(form, held, share)
        if recorder is not None:
            recorder.cut(held, _present(of_each))
        with recorder or nullcontext():
            gradients = self._back(held, of_each)
        self._tapes.keep(kind, recorder, gradients, form, [one is not None for one in of_each])
        return losses, gradients

    def _of_each(self, form: Form, held: Sequence[Tensor], share: float) -> tuple[Tensor, _Gradients]:
        """Give the losses of output and targets, and the gradients of the tensors of these."""
        leaves = form.leaves(held)
        output, targets = form.filled(leaves, self._shell.generators)
        losses = self._losses.of_each(output, targets, share)
        return losses, [leaf.grad for leaf in leaves]

    def _back(self, outputs: Sequence[Tensor], gradients: _Gradients) -> _Gradients:
        """Give the gradients of the stacks of parameters, laid out like these, each in memory of its own."""
        stacks = self._shell.parameters
        used = [(one, coming) for one, coming in zip(outputs, gradients, strict=True) if coming is not None]
        if not used or not stacks:
            return [None] * len(stacks)
        ours, coming = zip(*used, strict=True)
        memory = {one.data_ptr() for one in coming}
        own: list[Tensor | None] = []
        for one in torch.autograd.grad(ours, stacks, coming, allow_unused=True):
            if one is not None and (not one.is_contiguous() or one.data_ptr() in memory):
                one = one.clone(memory_format=torch.contiguous_format)  # as autograd does with one that it keeps
            if one is not None:
                memory.add(one.data_ptr())
            own.append(one)
        return own


class EvaluationPasses:
    """Runs a shell, which is in evaluation mode, without gradients.

    Args:
        shell: The model.
        rows: Reads batches.
        autocast: Makes the context of the forward passes.
        at_once: The first batch of a kind is recorded, not the second.
    """

    def __init__(self, shell: Shell, rows: Rows, autocast: _Autocast, at_once: bool) -> None:
        self._shell = shell
        self._rows = rows
        self._autocast = autocast
        self._tapes = _Tapes(at_once)
        self.forget = self._tapes.forget

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> tuple[Any, LaneTensor]:
        """Give the output for rows, (lanes, n), and their targets.

        Raises:
            NotFusible: One pass can't be right for all lanes.
        """
        kind = (rows.shape, rows.stride())
        known = self._tapes.get(kind)
        if known is not None and known.form is not None:
            played: tuple[Any, LaneTensor] = known.form.filled(known.tape.forward(rows)[0], self._shell.generators)
            return played
        recorder = self._tapes.recorder(kind, rows)
        with recorder or nullcontext():
            inputs, targets = self._rows(rows)
            with self._autocast():
                output = self._shell(inputs)
        if recorder is not None:
            form, held = taken_apart((output, targets))
            self._tapes.keep(kind, recorder, held, form)
        return output, targets


def _present(gradients: _Gradients) -> list[Tensor]:
    return [one for one in gradients if one is not None]
