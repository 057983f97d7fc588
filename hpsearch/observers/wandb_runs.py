"""Logs the sweep to W&B: a run for each ended trial, offline unless `WANDB_MODE` is set."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpsearch.errors import HpsearchError
from hpsearch.observers.base import Observed
from hpsearch.observers.trial_log import EndedTrial, TrialLog, facts_of, key_of
from hpsearch.trial import TrialState

_WHOLE = "hpsearch-digest"
"""Name of a file in a run's directory. It holds the trial's digest, and is written when the run is complete."""

_SECONDS = 30.0
"""Time limit in seconds for W&B to start or finish a run over the network."""


class WandbObserver(TrialLog):
    """Writes runs to `wandb/` in the study's directory, or in `WANDB_DIR`, for `wandb sync`.

    A run's id is derived from the study and the trial. The project is `WANDB_PROJECT`, by default the sweep's name; the
    group is the study's directory. Incomplete runs of a killed process are deleted. Runs of trials that continued after
    their end are replaced.

    Args:
        observed: The study.
    """

    name = "wandb"

    def __init__(self, observed: Observed) -> None:
        super().__init__(observed)
        # Set here, before trials run: changes that trials make to the environment are undone.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._study = observed.directory.absolute().name
        self._sweep = observed.sweep
        self._key = key_of(observed)
        self._root = Path(os.environ.get("WANDB_DIR") or observed.directory).absolute()
        self._mode = os.environ.get("WANDB_MODE") or "offline"

    def find(self) -> Mapping[int, str]:
        """Return the digests of the study's complete trials.

        Raises:
            HpsearchError: W&B is online, and there is no API key.
        """
        import wandb

        if self._mode == "online" and not wandb.api.api_key:  # W&B would ask for a key at the terminal
            raise HpsearchError("WANDB_MODE=online needs an API key: run `wandb login`, or set WANDB_API_KEY")
        digests: dict[int, str] = {}
        for folder in (self._root / "wandb").glob(f"*run-*-{self._key}-*"):
            mark = folder / _WHOLE
            if mark.is_file():
                digests[int(folder.name.rpartition("-")[2])] = mark.read_text()
        return digests

    def write(self, trial: EndedTrial) -> None:
        """Write a trial's run, and mark it as complete."""
        name = f"{self._key}-{trial.row.number}"
        for former in (self._root / "wandb").glob(f"*run-*-{name}"):
            shutil.rmtree(former)
        with _own_hooks():
            folder = self._write_run(trial, name)
        if folder.is_dir():  # WANDB_MODE=disabled writes no folder
            _wait_until_written(folder)
            (folder / _WHOLE).write_text(trial.digest)

    def _write_run(self, trial: EndedTrial, name: str) -> Path:
        import wandb

        row, failure = trial.row, trial.row.failure
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or self._sweep.name,
            dir=str(self._root),
            id=name,
            name=f"{self._study}-{row.number}",
            group=self._study,
            tags=[label[:64] for label in self.labels()],
            notes=None if failure is None else failure.traceback or failure.message,
            config=self._sweep.parameters.nest(row.params),
            reinit="create_new",  # the user's own run in the same process stays the current run
            settings=wandb.Settings(
                mode=self._mode,
                root_dir=str(self._root),
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_save_requirements=False,
                init_timeout=_SECONDS,
                finish_timeout=_SECONDS,
                finish_timeout_raises=True,
                login_timeout=1,
            ),
        )
        for reported in trial.reported:
            run.log({**reported.report.metrics, "_timestamp": reported.time}, step=reported.report.iteration)
        run.summary["hpsearch"] = facts_of(trial)
        run.finish(exit_code=int(row.state is TrialState.FAILED))
        return Path(run.dir).parent


def _wait_until_written(folder: Path) -> None:
    """Wait for W&B's process, which may still write to a run's folder a moment after the run was finished."""
    size, former = _size(folder), -1
    while size != former:
        time.sleep(0.05)
        size, former = _size(folder), size


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.wandb"))


@contextmanager
def _own_hooks() -> Iterator[None]:
    """Restore Python's hooks afterwards. Each run would wrap them once more, until the recursion is too deep."""
    leave, show = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = leave, show
