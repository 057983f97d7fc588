"""The peer: Ray Tune with reused actors, random search, its own defaults for all else."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpsearch_trainers.digits import MLP
from tests.benchmarks.plain_trial import PlainTrial

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray import tune
    from ray.tune.schedulers import HyperBandScheduler


@dataclass(frozen=True, slots=True)
class TuneTiming:
    """How a run of Tune went."""

    first_start: float
    ends: tuple[float, ...]
    """Of each trial, in order; wall time, like the others."""
    iterations: int
    """Results that came in: iterations that were run."""
    last_result: float
    wall: float
    """Seconds from the call of `fit` to its return."""

    def rate(self) -> float:
        """Trials per second, from the first end to the last."""
        return (len(self.ends) - 1) / (self.ends[-1] - self.ends[0])


class _Clock(tune.Callback):  # type: ignore[misc]
    """Notes when what happened."""

    def __init__(self) -> None:
        self.first_start = float("inf")
        self.ends: list[float] = []
        self.iterations = 0
        self.last_result = 0.0

    def on_trial_start(self, **_: Any) -> None:
        self.first_start = min(self.first_start, time.time())

    def on_trial_result(self, **_: Any) -> None:
        self.iterations += 1
        self.last_result = time.time()

    def on_trial_complete(self, **_: Any) -> None:
        self.ends.append(time.time())


class _Noop(tune.Trainable):  # type: ignore[misc]
    def setup(self, config: dict[str, Any]) -> None:
        self._value = config["x"]

    def step(self) -> dict[str, Any]:
        return {"value": self._value}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._value = new_config["x"]
        return True


class _Digits(tune.Trainable):  # type: ignore[misc]
    """The same training as ours, as a class of Tune's."""

    def setup(self, config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._training = MLP(PlainTrial(new_config))
        return True

    def step(self) -> dict[str, Any]:
        return self._training.step()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        import torch

        torch.save(self._training.state_dict(), os.path.join(checkpoint_dir, "state.pt"))  # noqa: PTH118

    def load_checkpoint(self, checkpoint: Any) -> None:
        import torch

        self._training.load_state_dict(torch.load(os.path.join(checkpoint, "state.pt"), weights_only=True))  # noqa: PTH118


def tune_noop(trials: int, concurrent: int) -> TuneTiming:
    """Run trials that do nothing but report once."""
    config = tune.TuneConfig(
        metric="value", mode="min", num_samples=trials, max_concurrent_trials=concurrent, reuse_actors=True
    )
    return _fit(_Noop, {"x": tune.uniform(0.0, 1.0)}, config, {"training_iteration": 1})


def tune_hyperband(space: Mapping[str, Any], trials: int, max_iter: int, eta: int, concurrent: int) -> TuneTiming:
    """Run Tune's HyperBand on the digits.

    Args:
        space: Parameters of `hpsearch_trainers.digits:MLP`, those to draw as Tune's domains.
        trials: How many.
        max_iter: Iterations of the longest.
        eta: What goes on at each rung is one of so many.
        concurrent: How many run side by side.
    """
    scheduler = HyperBandScheduler(time_attr="training_iteration", max_t=max_iter, reduction_factor=eta)
    config = tune.TuneConfig(
        metric="accuracy",
        mode="max",
        num_samples=trials,
        max_concurrent_trials=concurrent,
        scheduler=scheduler,
        reuse_actors=True,
    )
    return _fit(_Digits, space, config, {"training_iteration": max_iter})


def _fit(
    trainable: type[tune.Trainable], space: Mapping[str, Any], config: tune.TuneConfig, stop: dict[str, int]
) -> TuneTiming:
    clock = _Clock()
    with tempfile.TemporaryDirectory(prefix="hpsearch-bench-tune-") as folder:
        # A trainable without checkpoints must say so, and goes without them, as ours do.
        saves = tune.CheckpointConfig(checkpoint_at_end=trainable is not _Noop)
        run = tune.RunConfig(storage_path=folder, callbacks=[clock], stop=stop, verbose=0, checkpoint_config=saves)
        tuner = tune.Tuner(trainable, param_space=dict(space), tune_config=config, run_config=run)
        began = time.perf_counter()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            tuner.fit()
        wall = time.perf_counter() - began
    if len(clock.ends) != config.num_samples:
        raise RuntimeError(f"Tune should have completed {config.num_samples} trials, but did {len(clock.ends)}")
    return TuneTiming(clock.first_start, tuple(clock.ends), clock.iterations, clock.last_result, wall)
