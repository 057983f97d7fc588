"""The passes of a model of all lanes over batches: through Python the first time, from a tape after that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.at_once import cross_entropies_at_once
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.cross_entropy import are_scores, cross_entropies
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane_tensor import LaneTensor
from hpsearch_trainers.lanes.losses import Losses
from hpsearch_trainers.lanes.output import Form, taken_apart
from hpsearch_trainers.lanes.recorder import Recorder, as_one_call, memory_of
from hpsearch_trainers.lanes.rows import Rows
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.lanes.tape import Recording, Tape

__all__ = ["EvaluationPasses", "OtherGradients", "Recorded", "TrainingPasses", "keep_last"]

_MOST = 256
"""Recordings that are kept: of more, those that were made first are made again."""

_Autocast = Callable[[], AbstractContextManager[Any]]
_Gradients = Sequence[Tensor | None]


class OtherGradients(NotFusible):
    """A loss is of other parts of its model's output than when it was recorded."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of a batch, for any pack whose batches are of this kind."""

    recording: Recording
    form: Form | None
    """Of the output and the targets; None where the recording has the losses, too."""
    used: Sequence[bool] = ()
    """Of which tensors of these the losses gave gradients."""
    by_trusted: bool = False
    """Whether a pack made it that was trusted itself."""


@dataclass(frozen=True, slots=True)
class _Playable:
    tape: Tape
    form: Form | None
    used: Sequence[bool]
    by_trusted: bool


class _Tapes:
    """What was recorded, by what batches differ in.

    Args:
        name: Of the passes.
        roles: Of the pack: what another one has others of, in the same order.
        recordings: What this pack and others of its shape key have recorded: the first batch of a kind is. None: there
            are no others, and the second batch is: it isn't known whether there will be more, and recording takes as
            long as some batches do from the tape.

    Attributes:
        way: In which of several ways the model is computed.
        trusted: Whether what other packs have recorded that were trusted is right for this one, too, so that it isn't
            tried.
        took: Whether what such packs have recorded was tried and found right; None: nothing was tried.
        is_due: The next batch is computed through Python once more: what a model reads beside its tensors and
            attributes, such as a global variable, may be something else by now.
        forgotten: Something recorded was found to be no longer right.
    """

    def __init__(self, name: str, roles: Sequence[object], recordings: dict[Hashable, Recorded | None] | None) -> None:
        self.way: Hashable = None
        self.trusted = False
        self.took: bool | None = None
        self.is_due = False
        self.forgotten = False
        self._name = name
        self._roles = roles
        self._at_once = recordings is not None
        self._recordings = {} if recordings is None else recordings
        self._shared = _shared(roles)
        self._seen: set[Hashable] = set()
        self._playable: dict[Hashable, _Playable | None] = {}
        self._others: set[Hashable] = set()
        """Of which kinds there were recordings of other packs, which were tried."""

    def get(self, kind: Hashable) -> _Playable | None:
        """Return what was recorded of such a batch; None if nothing is known to be right."""
        whole = self.way, kind
        if whole not in self._playable and self.trusted:
            recorded = self._recordings.get((self._name, self._shared, whole))
            if recorded is not None and recorded.by_trusted:
                self._playable[whole] = self._bound(recorded)
        return self._playable.get(whole)

    def of_others(self, kind: Hashable) -> _Playable | None:
        """Give, once, what another pack has recorded of such a batch; None where there is nothing.

        It is to be tried: a model may read what is neither in its tensors nor in its attributes, another thing in each
        pack. Say by `tried` whether it is right; else this pack records its own.
        """
        kind = self.way, kind
        recorded = self._recordings.get((self._name, self._shared, kind))
        if recorded is None or kind in self._playable or kind in self._others:
            return None
        self._others.add(kind)
        return self._bound(recorded)

    def tried(self, kind: Hashable, playable: _Playable, *, same: bool) -> None:
        """Play this from now on, where it was the same; else nothing that was recorded before."""
        if playable.by_trusted:
            self.took = same and self.took is not False
        if same:
            self._playable[self.way, kind] = playable
        else:
            self.forget()

    def recorder(self, kind: Hashable, rows: Tensor) -> Recorder | None:
        """Return what is to record this batch; None where it isn't to be recorded."""
        kind = self.way, kind
        place = self._name, self._shared, kind
        not_repeatable = place in self._recordings and self._recordings[place] is None
        if (self._at_once or kind in self._seen) and kind not in self._playable and not not_repeatable:
            return Recorder([rows], self._roles)
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
        if recorder is None:
            return
        kind = self.way, kind
        recording = recorder.recording(results) if form is None or form.plain else None
        recorded = None if recording is None else Recorded(recording, form, used, self.trusted)
        self._playable[kind] = None if recorded is None else self._bound(recorded)
        if recorded is None or recorded.recording.of_any_pack:
            self._recordings.setdefault((self._name, self._shared, kind), recorded)
        for kept in (self._playable, self._recordings):
            keep_last(kept)

    def forget(self) -> None:
        """Forget all, and play from now on what is recorded here alone."""
        self._recordings = {}
        self._playable.clear()
        self.forgotten = True

    def _bound(self, recorded: Recorded) -> _Playable:
        return _Playable(recorded.recording.tape(self._roles), recorded.form, recorded.used, recorded.by_trusted)


def keep_last(recordings: dict[Any, Any]) -> None:
    """Drop those that were made first, where there are too many."""
    while len(recordings) > _MOST:
        del recordings[next(iter(recordings))]


def _shared(roles: Sequence[object]) -> Sequence[int]:
    """Return for each role the first that is the same, or has the same memory: a recording takes one for the other."""
    first: dict[Hashable, int] = {}
    return tuple(
        first.setdefault(memory_of(role) if isinstance(role, Tensor) and role.numel() > 0 else id(role), number)
        for number, role in enumerate(roles)
    )


class TrainingPasses:
    """Trains a shell, which is in training mode.

    Args:
        shell: The model.
        rows: Reads batches.
        losses: What is trained for.
        autocast: Makes the context of the forward passes.
        recordings: Of packs of the same shape key, if there are others.

    Attributes:
        tapes: What it has recorded.
    """

    def __init__(
        self,
        shell: Shell,
        rows: Rows,
        losses: Losses,
        autocast: _Autocast,
        recordings: dict[Hashable, Recorded | None] | None,
    ) -> None:
        self._shell = shell
        self._rows = rows
        self._losses = losses
        self._autocast = autocast
        self._cross_entropies = cross_entropies if shell.generators.noise is None else cross_entropies_at_once
        self.tapes = _Tapes("training", [*shell.roles, *rows.roles], recordings)

    def __call__(self, rows: Tensor, share: float) -> tuple[Tensor, _Gradients]:
        """Return the losses of each lane's rows, as `LossSums` takes them, and the gradients of the stacks.

        Args:
            rows: Their numbers, (lanes, n).
            share: By what each loss is multiplied before it is differentiated.

        Raises:
            ConfigurationError: A loss isn't one number.
            NotFusible: One pass can't be right for all lanes.
            OtherGradients: What was recorded isn't right for this batch.
        """
        if self._shell.generators.noise is not None:
            self._shell.generators.noise.begin_pass()
        kind = (rows.shape, rows.stride(), share, self._losses.plain)
        known = self.tapes.get(kind)
        is_due, self.tapes.is_due = self.tapes.is_due, False
        if known is not None and is_due:
            return self._tried(known, kind, rows, share)
        if known is None:
            others = self.tapes.of_others(kind)
            return self._through_python(kind, rows, share) if others is None else self._tried(others, kind, rows, share)
        with torch.no_grad():
            given, kept = known.tape.forward(rows)
        if known.form is None:
            return given[0], given[1:]
        losses, of_each = self._of_each(known.form, given, share)
        if [one is not None for one in of_each] != known.used:
            raise OtherGradients("its loss is of other parts of its model's output than in the step before")
        assert known.tape.backward is not None
        with torch.no_grad():
            return losses, known.tape.backward(kept, *_present(of_each))

    def unrecorded(self, rows: Tensor) -> tuple[Tensor, _Gradients]:
        """Return the same through Python, and keep nothing of it."""
        output, targets = self._forward(rows)
        if self._losses.plain and are_scores(output, targets):
            losses, gradients = self._of_scores(output, targets, 1.0)
            return losses, gradients
        form, held = taken_apart((output, targets))
        losses, of_each = self._of_each(form, held, 1.0)
        return losses, self._back(held, of_each)

    def _tried(self, others: _Playable, kind: Hashable, rows: Tensor, share: float) -> tuple[Tensor, _Gradients]:
        """Compute what another pack's recording does through Python, and take the recording if nothing differs."""
        traced = self._shell.traced
        with torch.no_grad():
            before = traced.now()
            given, kept = others.tape.forward(rows)
            after = traced.now()
            traced.go_back(before)
        output, targets = self._forward(rows)
        if self._losses.plain and are_scores(output, targets):
            losses, gradients = self._of_scores(output, targets, share)
            same = others.form is None and same_bits(given, [losses, *gradients])
        else:
            form, held = taken_apart((output, targets))
            losses, of_each = self._of_each(form, held, share)
            gradients = self._back(held, of_each)
            used = [one is not None for one in of_each]
            same = form == others.form and used == others.used and same_bits(given, held)
            if same:
                assert others.tape.backward is not None
                with torch.no_grad():
                    same = same_bits(others.tape.backward(kept, *_present(of_each)), gradients)
        self.tapes.tried(kind, others, same=same and same_bits(traced.now(), after))
        return losses, gradients

    def _forward(self, rows: Tensor) -> tuple[Any, LaneTensor]:
        inputs, targets = self._rows(rows)
        with self._autocast():
            return self._shell(inputs), targets

    def _of_scores(self, output: Any, targets: LaneTensor, share: float) -> tuple[Tensor, _Gradients]:
        losses, coming = as_one_call(self._cross_entropies, output.stack.detach(), targets.stack, share)
        return losses, self._back([output.stack], [coming])

    def _through_python(self, kind: Hashable, rows: Tensor, share: float) -> tuple[Tensor, _Gradients]:
        recorder = self.tapes.recorder(kind, rows)
        with recorder or nullcontext():
            output, targets = self._forward(rows)
            if self._losses.plain and are_scores(output, targets):
                losses, gradients = self._of_scores(output, targets, share)
                self.tapes.keep(kind, recorder, [losses, *gradients], None)
                return losses, gradients
        form, held = taken_apart((output, targets))
        losses, of_each = self._of_each(form, held, share)
        if recorder is not None:
            recorder.cut(held, _present(of_each))
        with recorder or nullcontext():
            gradients = self._back(held, of_each)
        self.tapes.keep(kind, recorder, gradients, form, [one is not None for one in of_each])
        return losses, gradients

    def _of_each(self, form: Form, held: Sequence[Tensor], share: float) -> tuple[Tensor, _Gradients]:
        """Return the losses of output and targets, and the gradients of the tensors of these."""
        leaves = form.leaves(held)
        output, targets = form.filled(leaves, self._shell.generators)
        losses = self._losses.of_each(output, targets, share)
        return losses, [leaf.grad for leaf in leaves]

    def _back(self, outputs: Sequence[Tensor], gradients: _Gradients) -> _Gradients:
        """Return the gradients of the stacks of parameters, laid out like these, each in memory of its own."""
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
        recordings: Of packs of the same shape key, if there are others.

    Attributes:
        tapes: What it has recorded.
    """

    def __init__(
        self, shell: Shell, rows: Rows, autocast: _Autocast, recordings: dict[Hashable, Recorded | None] | None
    ) -> None:
        self._shell = shell
        self._rows = rows
        self._autocast = autocast
        self.tapes = _Tapes("evaluation", [*shell.roles, *rows.roles], recordings)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> tuple[Any, LaneTensor]:
        """Return the output for rows, (lanes, n), and their targets.

        Raises:
            NotFusible: One pass can't be right for all lanes.
        """
        if self._shell.generators.noise is not None:
            self._shell.generators.noise.begin_pass()
        kind = (rows.shape, rows.stride())
        known = self.tapes.get(kind)
        if known is not None and known.form is not None:
            played: tuple[Any, LaneTensor] = known.form.filled(known.tape.forward(rows)[0], self._shell.generators)
            return played
        others = self.tapes.of_others(kind)
        if others is not None:
            return self._tried(others, kind, rows)
        recorder = self.tapes.recorder(kind, rows)
        with recorder or nullcontext():
            output, targets = self._forward(rows)
        if recorder is not None:
            form, held = taken_apart((output, targets))
            self.tapes.keep(kind, recorder, held, form)
        return output, targets

    def _tried(self, others: _Playable, kind: Hashable, rows: Tensor) -> tuple[Any, LaneTensor]:
        """Compute what another pack's recording does through Python, and take the recording if nothing differs."""
        traced = self._shell.traced
        before = traced.now()
        given, _ = others.tape.forward(rows)
        after = traced.now()
        traced.go_back(before)
        output, targets = self._forward(rows)
        form, held = taken_apart((output, targets))
        same = form == others.form and same_bits(given, held) and same_bits(traced.now(), after)
        self.tapes.tried(kind, others, same=same)
        return output, targets

    def _forward(self, rows: Tensor) -> tuple[Any, LaneTensor]:
        inputs, targets = self._rows(rows)
        with self._autocast():
            return self._shell(inputs), targets


def _present(gradients: _Gradients) -> list[Tensor]:
    return [one for one in gradients if one is not None]
