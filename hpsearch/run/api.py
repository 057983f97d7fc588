"""The Python API: `search` runs or resumes a sweep."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from hpsearch.backends import BackendName, make_backend
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.config.checks import at_least, integer
from hpsearch.config.import_paths import is_table
from hpsearch.errors import HpsearchWarning, SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.observers.base import Observer
from hpsearch.observers.display import Display
from hpsearch.observers.observer_hub import Callback
from hpsearch.observers.progress import choose_progress
from hpsearch.results.rerun import Rerun
from hpsearch.results.result_warnings import result_warnings
from hpsearch.results.study import Study, load
from hpsearch.run.ask_tell import steer
from hpsearch.run.interrupts import interrupted, passing_on
from hpsearch.run.launched import check_launched_once
from hpsearch.run.observing import checked_observers
from hpsearch.run.rerunning import plan_rerun
from hpsearch.run.search_sweep import sweep_of_search, with_old_keywords
from hpsearch.run.simulate import IN_MEMORY, run_in_memory
from hpsearch.run.study_run import RunSettings, create_study, run_study, warm_start_of
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.simulation import Simulation
from hpsearch.space import Space
from hpsearch.sweep.parameters import space_of
from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Parallel, Repeats, Resources, Search
from hpsearch.sweep.reader import section
from hpsearch.sweep.sweep import Method, Sweep
from hpsearch.trainable.trainables import unwrapped
from hpsearch.warm_start.read import Given
from hpsearch.worker.preflight import check_end


def search(
    trainable: str | Callable[..., Any] | Simulation | Sweep,
    parameters: Sweep | Space | Mapping[str, Any] | None = None,
    *,
    metric: str | Metric | Mapping[str, Any] | Sequence[Metric | Mapping[str, Any]] | None = None,
    method: Method | None = None,
    search: Search | Mapping[str, Any] | None = None,
    early_terminate: EarlyTerminate | Mapping[str, Any] | None = None,
    max_iter: int | None = None,
    run_cap: int | None = None,
    repeats: int | Repeats | Mapping[str, Any] | None = None,
    resources: Resources | Mapping[str, Any] | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    checkpoints: Checkpoints | Mapping[str, Any] | None = None,
    parallel: Parallel | Mapping[str, Any] | None = None,
    seed: int | None = None,
    warm_start: Given | Sequence[Given] | None = None,
    directory: str | Path | None = None,
    backend: BackendName = "ray",
    observers: Sequence[str | Observer] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **old: Any,
) -> Study:
    """Run a sweep to its end, and return its study.

    If the directory has a study of the same sweep it is resumed, or returned if it is finished. A larger `run_cap` or
    more brackets extend it. A study that ended at its `metric.target` or by its `limits.patience` continues with
    another value, or with none.

    Ctrl-C ends the sweep at the next reports, a second one at once; then KeyboardInterrupt is raised. SIGTERM, SIGHUP,
    SIGUSR1 and SIGUSR2 do the same, and raise SystemExit. The study is kept. If the sweep is stopped in another way,
    the study is returned in its current state.

    The arguments from `metric` to `seed` are keys of a sweep file, with the same names inside. A section is a mapping,
    as in `limits={"max_time": "2h"}`, or its dataclass, as in `limits=Limits(max_time=7200)`.

    Args:
        trainable: A function or class, its import path, or a whole `Sweep`.
        parameters: The search space: a `Space`, or names to distributions and structures. A plain value is a constant,
            a list is a choice, a mapping is a group, or one parameter in W&B's notation: `{"min": 0.0, "max": 0.5}`. Or
            a whole `Sweep`. Or the content of a sweep file, such as W&B's dictionary, or `{"parameters": {...},
            "points_to_try": [...]}`: such a mapping has the key `parameters`, and no key that is also an argument.
        metric: The metric to optimize: its name, to minimize it, or `{"name": "accuracy", "goal": "maximize"}`; or a
            list of several.
        method: `"random"` (as None), `"auto"`, `"grid"`, `"qmc"`, `"tpe"`, `"gp"`, `"cmaes"`, `"bohb"`,
            `"evolution"`, `"spectral"`, `"pbt"`, or the import path of a searcher of your own or of one of Optuna's
            samplers.
        search: Settings of methods that learn, as in `{"lag": 4}`.
        early_terminate: `Hyperband(...)`, `SuccessiveHalving(...)`, `ASHA(...)`, `PASHA(...)`, `MedianStopping(...)`,
            `Bands(...)`, `PBT(...)`, or a mapping such as `{"type": "hyperband", "max_iter": 27}`.
        max_iter: Iterations of every trial, without early termination.
        run_cap: Most trials to create.
        repeats: Trials of each configuration, with several seeds; or `Repeats(5, racing=True)`, or a mapping.
        resources: Workers and their resources, as in `{"workers": 4, "gpus_per_worker": 1}`.
        limits: Limits of time, failures and patience, as in `{"max_time": "2h", "patience": 20}`.
        checkpoints: Which checkpoints are kept, and how often they are written, as in `{"keep": "all", "every": 5}`.
        parallel: How several workers train one trial, as in `{"strategy": "local_sgd"}`; parameters of the group
            `parallel` override it.
        seed: Seed of all randomness of the search; None: 0.
        warm_start: Earlier results for methods that learn: a study's directory, a CSV file, an Optuna storage as
            `sqlite:///study.db#name`, a `Study` of hpsearch or Optuna, a DataFrame; or several. To resume: the same, or
            None.
        directory: The study's directory; None: the next free `runs/<name>-<n>`. `":memory:"` writes nothing, for
            thousands of simulated trials a second; it has no observers, and can't be resumed.
        backend: `"ray"`: this process's Ray, the cluster at `RAY_ADDRESS`, or a local one; `"inline"`: this process,
            for debuggers; `"simulated"`: a recorded table, or a subclass of `Curves` or `Steps`, on a virtual clock;
            `"agents"`: processes of `hpsearch agent` on machines that share the study's directory.
        observers: Names of observers, import paths `package.module:Class`, or instances; None: `["tensorboard"]`, or
            those of the whole sweep.
        callbacks: Functions that are called in this process with the `TrialRow` of each ended trial, in order. One that
            raises is reported and not called again; `StopSearch` ends the sweep.
        progress: Show the progress.
        old: Deprecated keywords, such as `workers=4`: the warning shows the new call.

    Raises:
        SweepError: The arguments are invalid, or differ from the directory's sweep.
        HpsearchError: The sweep can't be run.
        KeyboardInterrupt: Ctrl-C ended it; its `directory` is the study's.
        SystemExit: Another signal ended it, with exit code 128 plus its number (143 for SIGTERM); its `directory` is
            the study's.
    """
    arguments = {
        "parameters": parameters,
        "metric": metric,
        "method": method,
        "search": search,
        "early_terminate": early_terminate,
        "max_iter": max_iter,
        "run_cap": run_cap,
        "repeats": repeats,
        "resources": resources,
        "limits": limits,
        "checkpoints": checkpoints,
        "parallel": parallel,
        "seed": seed,
        "observers": observers,
    }
    if old:
        arguments = with_old_keywords(arguments, old)
    in_memory = directory == IN_MEMORY
    if in_memory and backend != "simulated":
        raise SweepError(f"search: directory={IN_MEMORY!r} is for the simulated backend alone, got {backend!r}")
    if isinstance(trainable, Simulation) and not in_memory:
        raise SweepError(
            f"search: an instance of {type(trainable).__name__} couldn't be had again when the study is resumed: "
            f"pass the class, or directory={IN_MEMORY!r}"
        )
    if not in_memory:
        check_launched_once("search")
    study_dir = None if directory is None or in_memory else StudyDirectory(Path(directory).expanduser())
    code = None if isinstance(trainable, Sweep) else trainable
    if isinstance(trainable, Sweep):
        if arguments["parameters"] is not None:
            raise SweepError(
                "search: parameters must not be passed with a whole sweep; pass one, alone or behind its trainable"
            )
        arguments["parameters"] = trainable
    path = None if code is None else _import_path(code)
    sweep = sweep_of_search(arguments, path, None if study_dir is None else study_dir.path.name, progress)
    if in_memory and (callbacks or sweep.on_end is not None):
        named = "callbacks" if callbacks else "on_end"
        raise SweepError(f"search: {named} must not be given with directory={IN_MEMORY!r}, which nobody watches")
    sweep.check_runs()
    folders = _search_path(code)
    past = () if warm_start is None else warm_start
    sources = tuple(past) if isinstance(past, list | tuple) else (cast("Given", past),)
    if in_memory:
        simulated = make_backend(backend, sweep, code, folders=folders)
        assert isinstance(simulated, SimulatedBackend)
        return run_in_memory(sweep, simulated, warm_start_of(sources, sweep, None))
    assert not isinstance(code, Simulation)
    if backend != "simulated" and not is_table(sweep.trainable):
        check_end(sweep, code, folders)
    if backend != "ray" or is_table(sweep.trainable):
        make_backend(backend, sweep, code, old.get("address"), folders)  # before a study is created
    watching = checked_observers(observers, sweep, folders)
    begins_with = warm_start_of(sources, sweep, study_dir)
    if study_dir is None or not study_dir.exists():
        study_dir = create_study(sweep, None if study_dir is None else study_dir.path, warm_start=begins_with)
    display = choose_progress(sys.stdout, quiet=not progress)
    run = _settings(code, backend, folders, display, watching, callbacks, old)
    return _run_called(study_dir, sweep, run, "search")


def change(directory: str | Path, parameters: Space | Mapping[str, Any], *, from_trial: int | None = None) -> Study:
    """Change the search space of a study that no process runs; return the study. `search` or `resume` continues it.

    Trials that have begun stay. Each gets the `default` of a parameter that it lacks. A new searcher gets the trials
    that fit the new space.

    Args:
        directory: The study's directory.
        parameters: Changed and added parameters, as for `search`; others stay. A `Space` is the whole new space. An
            added parameter needs `default`, the value that earlier trials had. A constant is no longer searched.
        from_trial: Number of the first trial that is from the new space; None: the next one.

    Raises:
        SweepError: The space can't be changed so.
        StudyInUseError: A process runs the study.
    """
    study = load(directory)
    space = parameters
    if not isinstance(space, Space):
        added = {".".join(item.path): item for item in space_of(space).declared}
        kept = study.sweep.parameters
        declared = [added.pop(".".join(item.path), item) for item in kept.declared]
        space = Space((*declared, *added.values()), kept.constraints)
    steer(study, "change", {"parameters": space.to_json(), "from_trial": from_trial})
    return load(study.directory)


def rerun(
    study: str | Path,
    top: int = 5,
    seeds: int = 3,
    *,
    iterations: int | None = None,
    trainable: str | Callable[..., Any] | None = None,
    resources: Resources | Mapping[str, Any] | None = None,
    directory: str | Path | None = None,
    backend: BackendName = "ray",
    observers: Sequence[str | Observer] | None = None,
    progress: bool = True,
    **old: Any,
) -> Rerun:
    """Run the best configurations of a study again, several times each, with other seeds and at full length.

    The result is a separate study. If the directory already contains this rerun, it is resumed.

    Args:
        study: The directory of a study that has ended.
        top: Number of configurations, from the best trials. Equal configurations count once.
        seeds: Number of runs of each configuration.
        iterations: Iterations of each run; None: the largest number among the study's trials.
        trainable: A function or class, or its import path; None: the study's, which must be importable.
        resources: Changes to the study's resources, as in `{"workers": 4}`; or all resources, as `Resources`. None: the
            study's.
        directory: The new study's directory; None: the next free `runs/<name>-rerun-<n>`.
        backend: See `search`.
        observers: See `search`; None: those of the study's sweep.
        progress: Show the progress.
        old: Deprecated keywords, such as `workers=4`: the warning shows the new call.

    Raises:
        StudyInUseError: A live process runs the study.
        SweepError: The arguments are invalid, or the directory has another rerun.
        HpsearchError: No trial has a value, or it can't be run.
        KeyboardInterrupt, SystemExit: A signal ended it: see `search`.
    """
    if old:
        resources = with_old_keywords({"resources": resources}, old, "rerun")["resources"]
    check_launched_once("rerun")
    if directory == IN_MEMORY:
        raise SweepError(f"rerun: directory must be a folder, got {IN_MEMORY!r}")
    if isinstance(trainable, Simulation):
        raise SweepError(
            f"rerun: an instance of {type(trainable).__name__} couldn't be had again when the study is resumed: pass "
            "the class"
        )
    former = load(Path(study).expanduser())
    plan = plan_rerun(former, top, seeds, iterations)
    sweep = plan.sweep
    if resources is not None:
        changed = {**asdict(sweep.resources), **resources} if isinstance(resources, Mapping) else resources
        sweep = replace(sweep, resources=section(Resources, changed, ("resources",)))
    if trainable is not None:
        if sweep.program is not None or sweep.command is not None:
            raise SweepError(
                f"rerun: {former.directory} runs a script, which can't be given as trainable; leave it out"
            )
        sweep = replace(sweep, trainable=_import_path(trainable))
    elif (sweep.trainable or "").startswith("__main__:"):
        raise SweepError(
            f"rerun: the trainable {sweep.trainable!r} of {former.directory} was given from Python and can't be "
            "imported; give it again: rerun(..., trainable=...)"
        )
    plan = replace(plan, sweep=sweep)
    folders = tuple(dict.fromkeys((*_search_path(trainable), *plan.folders)))
    if backend != "ray" or is_table(sweep.trainable):
        make_backend(backend, sweep, trainable, old.get("address"), folders)
    watching = checked_observers(observers, sweep, folders)
    display = choose_progress(sys.stdout, quiet=not progress)
    for note in plan.notes:
        display.note(note)
    study_dir = plan.opened(None if directory is None else Path(directory).expanduser())
    run = _settings(trainable, backend, folders, display, watching, (), old)
    result = _run_called(study_dir, sweep, run, "rerun").rerun
    assert result is not None
    return result


def extend(
    study: str | Path,
    *,
    run_cap: int | None = None,
    brackets: int | None = None,
    max_iter: int | None = None,
    trials: Sequence[int] = (),
) -> Study:
    """Extend a study that no process runs, as `hpsearch extend` does; `search` with its directory continues it.

    Args:
        study: The study's directory.
        run_cap: Trials in all.
        brackets: Brackets in all.
        max_iter: Iteration up to which ended trials train on from their last checkpoints. Where the scheduler of your
            own can raise its `max_iter`, and there are no `trials`, it is raised.
        trials: Numbers of the trials that train on; none: the best. A trial whose last checkpoint is gone is skipped
            with a warning.

    Raises:
        StudyInUseError: A live process runs the study.
        SweepError: The study can't be extended like this, or none of the trials can train on.
        JournalError: The journal can't be read.
    """
    if trials and max_iter is None:
        raise SweepError("extend: trials must be given with max_iter, up to which they train on")
    given = {"run_cap": run_cap, "brackets": brackets, "max_iter": max_iter}
    details: dict[str, Any] = {
        name: at_least(1, integer, value, (name,)) for name, value in given.items() if value is not None
    }
    if not details:
        raise SweepError("extend: by what? Pass run_cap, brackets or max_iter")
    if trials:
        details["trials"] = [integer(trial, ("trials", index)) for index, trial in enumerate(trials)]
    directory = Path(study).expanduser()
    for note in steer(load(directory), "extend", details).get("notes", ()):
        warnings.warn(note, HpsearchWarning, stacklevel=2)
    return load(directory)


def _settings(
    code: str | Callable[..., Any] | None,
    backend: BackendName,
    folders: tuple[str, ...],
    display: Display,
    observers: Sequence[str | Observer] | None,
    callbacks: Sequence[Callback],
    old: Mapping[str, Any],
) -> RunSettings:
    """Return the run settings for the arguments of a call, including deprecated ones."""
    return RunSettings(
        trainable=code,
        backend=lambda sweep: make_backend(backend, sweep, code, old.get("address"), folders),
        display=display,
        tensorboard=old.get("tensorboard", True),
        observers=observers,
        callbacks=tuple(callbacks),
        search_path=folders,
        virtual=backend == "simulated",
        starting="starting Ray" if backend == "ray" else "",
    )


def _import_path(trainable: str | Callable[..., Any] | Simulation | None) -> str:
    """Return the import path of the trainable that the study stores."""
    if isinstance(trainable, str):
        return trainable
    if isinstance(trainable, Simulation):
        return f"{type(trainable).__module__}:{type(trainable).__qualname__}"
    target = unwrapped(trainable)
    name = getattr(target, "__qualname__", None)
    if not callable(trainable) or name is None:
        raise SweepError(
            "search: the trainable must be a function, a class, or an import path 'package.module:name'; "
            f"got {trainable!r}"
        )
    # The arguments of a partial have no name that another process could import.
    return f"{target.__module__ if target is trainable else '__main__'}:{name}"


def _search_path(trainable: str | Callable[..., Any] | Simulation | None) -> tuple[str, ...]:
    """Return the search path for the trainable's module: the current folder, and the module's own."""
    here = str(Path.cwd())
    module = sys.modules.get(getattr(unwrapped(trainable), "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return (here,)
    root = Path(file).resolve().parents[module.__name__.count(".") + (Path(file).name == "__init__.py")]
    return tuple(dict.fromkeys((here, str(root))))


def _run_called(directory: StudyDirectory, sweep: Sweep, run: RunSettings, call: str) -> Study:
    """Run a study as `run_study` does, and show warnings about its results. A signal that ends it is raised.

    If a signal ended the study, it isn't returned: the caller could take its best trial for that of a complete study.

    Args:
        directory: The study's directory.
        sweep: The sweep.
        run: How it is run.
        call: The function that the user called. It must call this function directly, for the location of warnings.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it; its `directory` is the study's.
        SystemExit: Another signal ended it; the same.
        HpsearchError: As in `run_study`.
    """
    path = str(directory.path)
    is_importable = not (sweep.trainable or "").startswith("__main__:")
    resume = f", or with: hpsearch resume {shlex.quote(path)}" if is_importable else ""
    message = f"the study is kept in {path}; continue with the same call of {call} and directory={path!r}{resume}"
    try:
        with passing_on(run.interrupts, message):
            study = run_study(directory, sweep, run)
        if study.state in ("interrupted", "killed") and not run.interrupts.signals:
            raise interrupted(message)  # for example, a callback raised KeyboardInterrupt
    except (KeyboardInterrupt, SystemExit) as error:
        vars(error)["directory"] = directory.path
        raise
    for text in result_warnings(study):
        warnings.warn(text, HpsearchWarning, stacklevel=3)
    return study
