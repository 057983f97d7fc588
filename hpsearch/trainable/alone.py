"""A trial without a sweep, and the script that is started by hand."""

from __future__ import annotations

import ast
import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.config.checks import nearest
from hpsearch.errors import TrainableError
from hpsearch.objective import Objective
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.running_trial import RunningTrial

_FEW = 3
"""Iterations of `trial.iterations()` if no number is given."""


def script_alone(defaults: Mapping[str, Any], max_iter: int | None) -> RunningTrial:
    """Start the trial of a script that no sweep runs, with parameters from its command line.

    `HPSEARCH_END`, `HPSEARCH_DIRECTORY` and `HPSEARCH_SEED` have the meaning that they have in a sweep.

    Raises:
        TrainableError: A parameter of the command line is unknown or has another type than its default; a variable
            isn't a number; or a launcher has started several ranks.
    """
    if _variable("WORLD_SIZE", 1) > 1:
        raise TrainableError(
            f"a script by itself must run in one process, but WORLD_SIZE is {os.environ['WORLD_SIZE']}: start it "
            "without the launcher, or name it as `program` in a sweep with resources.workers_per_trial"
        )
    params = _from_command_line(sys.argv[1:], defaults)
    end = _variable("HPSEARCH_END", 0) or max_iter
    trial = TrialAlone(params, end, os.environ.get("HPSEARCH_DIRECTORY") or None, _variable("HPSEARCH_SEED", 0))
    shown = " ".join(f"{name}={value}" for name, value in trial.params.items()) or "no parameters"
    begins = f", after iteration {trial.start}" if trial.start else ""
    print(
        f"hpsearch: no sweep runs this script, so it runs by itself: {shown}{begins}\n"
        "hpsearch: --NAME=VALUE sets a parameter, HPSEARCH_END=N in the environment the last iteration, and "
        "HPSEARCH_DIRECTORY=DIR keeps the last checkpoint and resumes from it",
        file=sys.stderr,
        flush=True,
    )
    random_state.seed_all(trial.seed)
    random_state.seed_when_imported(trial.seed)
    atexit.register(trial.clean_up)
    return trial


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise TrainableError(f"{name} in the environment must be a whole number of at least 0, got {text!r}")
    return int(text)


class TrialAlone(RunningTrial):
    """A trial that prints its reports.

    Args:
        params: The parameters, nested.
        end: The last iteration; None: unknown.
        directory: Directory of the last checkpoint, from which the trial resumes; None: no checkpoint is kept.
        seed: The seed.
    """

    def __init__(self, params: Mapping[str, Any], end: int | None, directory: str | Path | None, seed: int) -> None:
        folder = None if directory is None else Path(directory).absolute()
        start, checkpoint = (0, None) if folder is None else _newest(folder)
        if folder is None:
            folder = Path(tempfile.gettempdir(), f"hpsearch-{os.getpid()}-{os.urandom(4).hex()}")
        self._scratch = folder if directory is None else None
        """Directory of the attempt, to be removed."""
        self._is_checked = False
        self._written: str | None = None
        """Name of the last checkpoint that this trial wrote."""
        self.reports: list[dict[str, float]] = []
        """The metrics of each iteration."""
        assignment = Assignment(
            number=0,
            params=_Params(params),
            seed=seed,
            directory=str(folder),
            start=start,
            end=end,
            checkpoint=checkpoint,
            objective=Objective(None),
            save_every=None if directory is None else 1,
        )
        super().__init__(assignment, self)

    def iterations(self) -> Iterator[int]:
        """Yield the numbers of the iterations; without a known end, of three."""
        if self.end is None:
            self.end = self.start + _FEW
        return super().iterations()

    def clean_up(self) -> None:
        """Remove the directory of the attempt, if it isn't to be kept."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _write(self, checkpoint: object) -> str | None:
        """Write a checkpoint. Where none is kept, the first one is checked alone."""
        if self._scratch is None:
            return super()._write(checkpoint)
        if not self._is_checked:
            self._is_checked = True
            self.write_checkpoint = _check
            super()._write(checkpoint)
        return None

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Print a report."""
        self.reports.append(dict(metrics))
        values = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        print(f"iteration {iteration}  {values}  ({seconds:.3g} s)", flush=True)

    def noted(self, notes: Mapping[str, str]) -> None:
        """Print notes."""
        for name, text in notes.items():
            print(f"note {name}: {text}", flush=True)

    def cut_requested(self) -> bool:
        """Return False."""
        return False

    def was_cut(self) -> None:
        """Do nothing."""

    def saved(self, iteration: int, name: str) -> None:
        """Remove the checkpoint before this one, if this trial wrote it."""
        if self._written is not None:
            shutil.rmtree(self.directory / self._written, ignore_errors=True)
        self._written = name


def _check(directory: Path, iteration: int, state: object, random_state: RandomState | None) -> str:
    """Check that a state can be saved and read. Paths aren't checked."""
    if not isinstance(state, str | os.PathLike):
        checkpoints.parts_of(state, random_state or {})
    return ""


def _newest(folder: Path) -> tuple[int, str | None]:
    """Return the iteration and the path of a folder's newest checkpoint; (0, None) if there is none."""
    prefix = checkpoints.name_of(0).removesuffix("0")
    endings = (path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*"))
    newest = max((int(ending) for ending in endings if ending.isdecimal()), default=0)
    return newest, str(folder / checkpoints.name_of(newest)) if newest else None


class _Params(dict[str, Any]):
    """Parameters whose missing names raise an error that says where they come from."""

    def __missing__(self, name: str) -> Any:
        raise TrainableError(
            f"the trial must have the parameter {name!r}, but no sweep gives it: write --{name}=VALUE on the command "
            f"line, hpsearch.current_trial({{{name!r}: VALUE}}) in a script, or hpsearch.try_out(..., {name}=VALUE)"
        )


def _from_command_line(argv: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults, changed by `--NAME=VALUE` and `--NAME VALUE`, with nested groups for dotted names.

    Values are in Python's notation, as a sweep's `${args}` writes them; what isn't is text.

    Args:
        argv: The words after the script's name.
        defaults: The parameters and their values, nested. If there are none, every name is a parameter.
    """
    known = _flat(defaults)
    flat = dict(known)
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            continue
        name, equals, text = word[2:].partition("=")
        if not equals:
            text = words.pop(0) if words and not words[0].startswith("--") else "True"
        if known and name not in known:
            raise TrainableError(f"--{name}: must be a parameter of this script: {nearest(name, known)}")
        flat[name] = _value(name, text, known.get(name))
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        group = nested
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = value
    return nested


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in params.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _value(name: str, text: str, default: Any) -> Any:
    """Return a value of the command line. It has the type of its default, if there is one."""
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"true": True, "false": False, "null": None}.get(text, text)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and value is not None and type(value) is not type(default):
        expected = type(default).__name__
        raise TrainableError(f"--{name}: must be of the type of its default {default!r}, {expected}, got {text!r}")
    return value
