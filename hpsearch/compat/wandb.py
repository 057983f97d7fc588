"""W&B's functions for a script that hpsearch runs: `import hpsearch.compat.wandb as wandb` replaces `import wandb`.

`init` returns the trial as a run, and `config` contains its params. All logs of a step that includes the sweep's metric
are one report. Nothing is sent over the network. Functions without results (`watch`, `save`, `Image`, ...) do nothing,
and print this once.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.compat.wandb_run import IDLE, Config, Nothing, Run, Summary, mapping_of, say_once, trial_here
from hpsearch.errors import SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.sweep.document import read_document
from hpsearch.trainable.running_trial import RunningTrial

if TYPE_CHECKING:
    from hpsearch.backends import BackendName
    from hpsearch.results.study import Study

__all__ = ["agent", "config", "finish", "init", "log", "login", "run", "summary", "sweep"]

config = Config()
"""Config of the newest run."""
run: Run | None = None
"""The newest run; None if it is finished."""
summary = Summary()
"""Summary of the newest run."""

_assigned: dict[str, Any] = {}
"""Value that the script assigned with `wandb.config = {...}`: defaults of each new run."""
_sweeps: dict[str, dict[str, Any]] = {}
_begun: dict[str, Path] = {}
"""The study's directory of each sweep that `agent` ran."""
_numbers = itertools.count(1)

_IDLE = (
    IDLE
    | {"Audio", "Graph", "Histogram", "Html", "Image", "JoinedTable", "Molecule", "Object3D", "Plotly", "Table"}
    | {"AlertLevel", "Api", "Artifact", "Settings", "Video", "join", "plot", "plots", "require", "sdk", "setup", "util"}
    | {"termerror", "termlog", "termwarn"}
)


def init(
    project: str | None = None, entity: str | None = None, config: object = None, name: str | None = None, **named: Any
) -> Run:
    """Begin a run. In a trial, the trial's params override `config`.

    Args:
        project: Stored as an attribute.
        entity: Stored as an attribute.
        config: Default values, as a mapping or argparse's namespace.
        name: Name of the run; None: the trial's name.
        named: Other arguments of `wandb.init`. `id`, `group`, `tags` and `notes` are stored as attributes.
    """
    global run, summary
    if run is not None:
        run.finish()
    trial = trial_here()
    if trial is None:
        say_once("no sweep runs this script, so that what it logs goes nowhere")
    here: Config = globals()["config"]
    here.begin({**_assigned, **mapping_of(config)}, {} if trial is None else trial.params)
    run = Run(trial, here, {"project": project, "entity": entity, "name": name, **named})
    summary = run.summary
    if trial is not None:
        trial.at_end = functools.partial(_end, run)
    return run


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
    """Log to the newest run; see `Run.log`.

    Raises:
        SweepError: There is no run.
    """
    if run is None:
        raise SweepError("wandb.log must come after wandb.init, and before wandb.finish")
    run.log(data, step, commit)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the newest run; see `Run.finish`."""
    global run
    if run is not None:
        run.finish(exit_code)
    run = None


def _end(newest: Run, error: BaseException | None) -> None:
    """End a trial's newest run when the trial's function or script ends."""
    global run
    run = None
    newest.at_end(error)


def login(*args: Any, **kwargs: Any) -> bool:
    """Do nothing, as there is no server. Return True."""
    return True


def sweep(sweep: Mapping[str, Any] | str | Path, entity: str | None = None, project: str | None = None) -> str:
    """Register a sweep for `agent`, and return its name.

    Args:
        sweep: The sweep as a W&B dictionary, or the path of a sweep file.
        entity: Without effect.
        project: Without effect.
    """
    content = sweep if isinstance(sweep, Mapping) else read_document(Path(sweep)).value
    if not isinstance(content, Mapping):
        raise SweepError(f"sweep must be a mapping, or a file that holds one, got a {type(content).__name__}")
    name = f"sweep-{next(_numbers)}"
    _sweeps[name] = dict(content)
    return name


def agent(
    sweep_id: str,
    function: Callable[[], object] | None = None,
    entity: str | None = None,
    project: str | None = None,
    count: int | None = None,
    *,
    backend: BackendName = "inline",
    **options: Any,
) -> Study:
    """Run a sweep to its end and return the study. Trials run in sequence in this process, as W&B's agent runs them.

    A second call for the same sweep resumes its study.

    Args:
        sweep_id: The result of `sweep`.
        function: Called for each trial.
        entity: Without effect.
        project: Without effect.
        count: Maximum number of trials of this call.
        backend: `"ray"` runs trials in parallel, in their own processes.
        options: Other arguments of `hpsearch.search`, such as `directory`.

    Raises:
        SweepError: There is no such sweep, or no function to call.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    import hpsearch

    if sweep_id not in _sweeps:
        raise SweepError(f"agent: sweep_id must be what wandb.sweep gave in this process, got {sweep_id!r}")
    if function is None:
        raise SweepError("agent: function is required; a sweep with a program is run by `hpsearch run SWEEP.yaml`")
    content = dict(_sweeps[sweep_id])
    folder = options.pop("directory", None) or _begun.get(sweep_id)
    if count is not None:
        begun = 0 if folder is None or not StudyDirectory(Path(folder)).exists() else hpsearch.load(folder).count
        most = begun + count
        content["run_cap"] = min(most, content.get("run_cap") or most)
    try:
        study = hpsearch.search(_called(function), content, backend=backend, directory=folder, **options)
    except KeyboardInterrupt as error:
        if (directory := getattr(error, "directory", None)) is not None:
            _begun[sweep_id] = directory  # the next call resumes it
        raise
    _begun[sweep_id] = study.directory
    return study


def _called(function: Callable[[], object]) -> Callable[[RunningTrial], None]:
    def train(trial: RunningTrial) -> None:
        function()

    train.__name__ = train.__qualname__ = getattr(function, "__name__", "train")
    return train


def __getattr__(name: str) -> Any:
    if name in _IDLE:
        return Nothing(f"wandb.{name}")
    raise AttributeError(
        f"hpsearch.compat.wandb has no {name!r}; it has {', '.join(__all__)}, and takes the calls of "
        f"{', '.join(sorted(_IDLE))}, which do nothing"
    )


class _Module(types.ModuleType):
    """The class of this module. With it, `wandb.config = {...}` sets defaults and doesn't hide the sweep's params."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "config" or isinstance(value, Config):
            super().__setattr__(name, value)
            return
        defaults = mapping_of(value)
        if run is None:
            _assigned.clear()
            _assigned.update(defaults)
        config.update(defaults)


sys.modules[__name__].__class__ = _Module
