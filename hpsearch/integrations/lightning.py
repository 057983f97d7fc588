"""PyTorch Lightning: `fit(trainer, model, ...)` in place of `trainer.fit(model, ...)`.

Each epoch is an iteration. If the model is validated, only epochs that end with a validation are iterations. The logged
metrics are reported, with Lightning's own checkpoint.

Reports and checkpoints are written just before the next epoch begins. Lightning's callbacks usually save at the end of
an epoch, but then a learning rate scheduler that depends on a metric hasn't stepped yet, and a resumed run would
differ.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.integrations.trial import numbers, report, start_path, trial_of_one
from hpsearch.trainable.restoring import restore
from hpsearch.trainable.running_trial import RunningTrial

_CALLER = "hpsearch.integrations.lightning.fit"


def fit(trainer: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Train as `trainer.fit` does, from the trial's checkpoint to the end of its segment.

    The sweep's metric is a metric that the model logs, such as `val_loss`. `max_epochs` is the number of epochs of the
    whole training, at least the sweep's `max_iter`. Set the trainer's `default_root_dir=trial.directory`, as trials run
    in parallel.

    Args:
        trainer: A `Trainer` of `lightning` or `pytorch_lightning`, for one device.
        model: See `trainer.fit`.
        args: See `trainer.fit`.
        kwargs: See `trainer.fit`. `ckpt_path` isn't allowed.

    Raises:
        TrainableError: No sweep runs this process, or the trial can't be trained in this way.
    """
    if kwargs.pop("ckpt_path", None) is not None:
        raise TrainableError(f"{_CALLER} must choose the checkpoint, which is the trial's: leave ckpt_path out")
    trial = trial_of_one(_CALLER, trainer.world_size)
    library = next(kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer").split(".trainer")[0]
    base = importlib.import_module(f"{library}.callbacks").Callback
    # First in the list: other callbacks must not begin an epoch that doesn't run.
    reporting = type("HpsearchReport", (_Reporting, base), {})(trial)
    trainer.callbacks.insert(0, reporting)
    try:
        trainer.fit(model, *args, ckpt_path=start_path(trial), **kwargs)
    finally:
        trainer.callbacks.remove(reporting)


class _Reporting:
    """The hooks of the callback that reports."""

    def __init__(self, trial: RunningTrial) -> None:
        super().__init__()
        self._trial = trial
        self._has_begun = False
        self._inherited: list[tuple[str, list[Any]]] = []
        self._epoch_ended = False
        self._validated = False

    def on_load_checkpoint(self, trainer: Any, model: Any, checkpoint: dict[str, Any]) -> None:
        """Keep Lightning from loading a parent's settings into a fork."""
        if self._trial.parent is not None:
            self._inherited = [(name, checkpoint[name]) for name in ("optimizer_states", "lr_schedulers")]
            checkpoint |= {name: [] for name, _ in self._inherited}

    def on_train_start(self, trainer: Any, model: Any) -> None:
        """Restore a fork's optimizers, and check that the training is long enough for the segment."""
        targets = (trainer.optimizers, [config.scheduler for config in trainer.lr_scheduler_configs])
        for objects, (_, states) in zip(targets, self._inherited, strict=False):
            for target, state in zip(objects, states, strict=False):
                restore(target, state)
        self._inherited = []
        every = (trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else 1
        epochs, end = trainer.max_epochs, self._trial.end
        if end is not None and epochs is not None and 0 <= epochs < end * every:
            raise TrainableError(
                f"Trainer(max_epochs={epochs}) must train for {end * every} epochs or more, as the sweep gives this "
                f"trial {end} iterations: max_epochs is for all of the training, as is a schedule of the rate"
            )

    def on_validation_end(self, trainer: Any, model: Any) -> None:
        """Record that there are new metrics, except after the sanity check."""
        self._validated |= not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Any, model: Any) -> None:
        """Record that an epoch has ended."""
        self._epoch_ended = True

    def on_train_epoch_start(self, trainer: Any, model: Any) -> None:
        """Report the previous epoch, and end the training at the end of the segment."""
        if self._report(trainer):
            raise StopIteration  # Lightning's loop then ends normally, as at max_epochs
        if not self._has_begun and self._trial.start:
            self._begin_like_any(trainer)
        self._has_begun = True

    def on_train_end(self, trainer: Any, model: Any) -> None:
        """Report the last epoch."""
        self._report(trainer)

    def _begin_like_any(self, trainer: Any) -> None:
        """Begin the epoch after a checkpoint as in an uninterrupted run.

        Lightning creates its iterator of batches before the generators are restored, and counts the epoch that begins
        after a checkpoint as ready in the total alone.
        """
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.completed + 1
        trainer.fit_loop.on_iteration_done()
        trainer.fit_loop.restarting = False
        _ = self._trial.checkpoint  # restores the random number generators

    def _report(self, trainer: Any) -> bool:
        if not self._epoch_ended or not (self._validated or not trainer.enable_validation):
            return False
        self._epoch_ended = self._validated = False
        path = self._trial.directory / "lightning.ckpt"

        def save() -> Path:
            trainer.save_checkpoint(path)
            return path

        try:
            return report(self._trial, numbers(trainer.callback_metrics), save)
        finally:
            path.unlink(missing_ok=True)  # it was copied
