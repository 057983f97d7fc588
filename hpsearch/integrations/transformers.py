"""Hugging Face's Trainer: `train(trainer)` in place of `trainer.train()`.

Each evaluation is an iteration. Its metrics are reported, with the Trainer's own checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.integrations.trial import numbers, report, start_path, trial_of_one
from hpsearch.trainable.restoring import restore
from hpsearch.trainable.running_trial import RunningTrial

_CALLER = "hpsearch.integrations.transformers.train"

_OPTIMIZER, _SCHEDULER = "optimizer.pt", "scheduler.pt"
"""Names of files in the Trainer's checkpoint."""

_TIMES = ("_runtime", "_per_second", "_time")
"""Suffixes of metrics that aren't reported, as they depend on the machine: equal trials would differ."""


def train(trainer: Any, **kwargs: Any) -> Any:
    """Train as `trainer.train` does, from the trial's checkpoint to the end of its segment, and return its result.

    The sweep's metric is a metric of the evaluation, such as `eval_loss`. `num_train_epochs` is the number of epochs of
    the whole training, at least the sweep's `max_iter` if each epoch is evaluated. Set `seed=trial.seed` in the
    training arguments, or all trials use the same random numbers. Checkpoints are written to the trial's directory,
    not to `output_dir`.

    Args:
        trainer: A `transformers.Trainer`, for one device.
        kwargs: See `trainer.train`. `resume_from_checkpoint` isn't allowed.

    Raises:
        TrainableError: No sweep runs this process, or the trial can't be trained in this way.
    """
    from transformers import TrainerCallback

    args = trainer.args
    if kwargs.pop("resume_from_checkpoint", None) is not None:
        raise TrainableError(f"{_CALLER} must choose the checkpoint: leave resume_from_checkpoint out")
    trial = trial_of_one(_CALLER, args.world_size)
    _check(args, trial)
    path = start_path(trial)
    former = args.output_dir
    args.output_dir = str(trial.directory / "transformers")
    forked = path if trial.parent is not None else None
    reporting = type("HpsearchReport", (_Reporting, TrainerCallback), {})(trial, forked)
    if forked is not None:
        path = _without_settings(forked, trial.directory / "parent")
    trainer.add_callback(reporting)
    try:
        return trainer.train(resume_from_checkpoint=None if path is None else str(path), **kwargs)
    finally:
        trainer.remove_callback(reporting)
        args.output_dir = former


def _check(args: Any, trial: RunningTrial) -> None:
    """Check that no training argument ends or resumes trials in a different way than the sweep."""
    wrong = {
        "eval_strategy='no'": (args.eval_strategy == "no", "each evaluation is an iteration: write 'epoch' or 'steps'"),
        "save_strategy='best'": (args.save_strategy == "best", "the sweep says what is kept: write 'no'"),
        "save_only_model=True": (args.save_only_model, "a trial goes on with its optimizer: leave it out"),
    }
    for option, (is_wrong, advice) in wrong.items():
        if is_wrong:
            raise TrainableError(f"TrainingArguments({option}) can't be used in a sweep, as {advice}")
    epochs, end = args.num_train_epochs, trial.end
    if args.eval_strategy == "epoch" and args.max_steps <= 0 and end is not None and epochs < end:
        raise TrainableError(
            f"TrainingArguments(num_train_epochs={epochs:g}) must be {end} or more, as the sweep gives this trial "
            f"{end} iterations: it is for all of the training, as is the schedule of the rate"
        )


def _without_settings(checkpoint: Path, directory: Path) -> Path:
    """Create a copy of a checkpoint without optimizer, learning rate schedule and random state, and return its path.

    Optimizer and schedule contain the settings of the parent trial.

    Args:
        checkpoint: Checkpoint of the parent trial.
        directory: Directory of the copy. It is created, and contains links.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in checkpoint.iterdir():
        if path.name not in (_OPTIMIZER, _SCHEDULER) and not path.name.startswith("rng_state"):
            (directory / path.name).symlink_to(path.resolve())
    return directory


class _Reporting:
    """The hooks of the callback that reports.

    Args:
        trial: The trial.
        forked: The parent's checkpoint, if the trial is a fork.
    """

    def __init__(self, trial: RunningTrial, forked: Path | None) -> None:
        super().__init__()
        self._trial = trial
        self._forked = forked
        self._began = 0
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the first step, and restore a fork's optimizer with the fork's settings.

        An evaluation before the first step (`eval_on_start`) isn't an iteration.
        """
        self._began = state.global_step
        if self._forked is not None:
            import torch

            for target, name in (("optimizer", _OPTIMIZER), ("lr_scheduler", _SCHEDULER)):
                saved = torch.load(self._forked / name, weights_only=True, map_location="cpu")
                restore(kwargs[target], saved)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Keep the metrics of each data set, and request a checkpoint."""
        if state.global_step > self._began:
            reported = numbers(metrics or {})
            self._metrics |= {name: value for name, value in reported.items() if not name.endswith(_TIMES)}
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report with the checkpoint that was just written, and end the training at the end of the segment."""
        if not self._metrics:
            return
        metrics, self._metrics = self._metrics, {}
        path = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if report(self._trial, metrics, path):
            control.should_training_stop = True
        if args.save_strategy == "no":  # the checkpoint was copied, and isn't needed any more
            shutil.rmtree(path, ignore_errors=True)
