"""A Trainer for every strategy, one of whose ranks may be killed in the middle of an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch.events import Saved
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.hpsearch.support.conditions import wait_until
from tests.hpsearch.support.scripted import events_of

_ROWS, _FEATURES = 96, 6


class _Rows(Dataset[tuple[Tensor, Tensor]]):
    """Two classes that a line separates; in an epoch that is to be struck, reading them strikes."""

    def __init__(self) -> None:
        self.inputs = torch.randn(_ROWS, _FEATURES, generator=torch.Generator().manual_seed(0))
        self.victim: int | None = None
        self._read = 0

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if self.victim is not None:
            self._read += 1
            if self._read == _ROWS // 4:
                os.kill(self.victim, signal.SIGKILL)
        return self.inputs[row], (self.inputs[row].sum() > 0).long()


class Killed(Trainer):
    """Trains a small perceptron; rank 0, which always trains, kills the rank `victim` in its second epoch, once.

    It does so when the journal of the study `struck` in `folder` has the first epoch's checkpoint. Without `folder`
    nobody is killed.
    """

    def __init__(self, trial: RunningTrial) -> None:
        self._rows = _Rows()
        self._folder = Path(trial.params["folder"]) if trial.params["folder"] else None
        self._trial = trial
        if self._folder is not None:
            self._pid_of(trial.rank).write_text(str(os.getpid()))
        super().__init__(trial)

    def build(self, params: Mapping[str, Any]) -> Parts:
        model = nn.Sequential(nn.Linear(_FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        validation = _Rows()
        return Parts(
            model, optimizer, nn.functional.cross_entropy, train=self._rows, validation=validation, batch_size=16
        )

    def step(self) -> dict[str, float]:
        if self._folder is not None and self._trial.rank == 0 and self.epoch == 1:
            struck = self._folder / f"{self._trial.number}.struck"
            if not struck.exists():
                wait_until(self._is_saved)
                struck.touch()
                self._rows.victim = int(self._pid_of(self.params["victim"]).read_text())
        return super().step()

    def _is_saved(self) -> bool:
        assert self._folder is not None
        events = events_of(self._folder / "struck")
        return any(isinstance(event, Saved) and event.trial == self._trial.number for event in events)

    def _pid_of(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._trial.number}.{rank}.pid"
