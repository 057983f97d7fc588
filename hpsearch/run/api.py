"""The Python API: `search` runs a sweep, or goes on with one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from hpsearch.backends import BackendName, make_backend
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.errors import SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.observers.base import Observer
from hpsearch.observers.callbacks import Callback
from hpsearch.observers.screen import choose_progress
from hpsearch.results.rerun import Rerun
from hpsearch.results.study import Study, load
from hpsearch.run.called import run_called
from hpsearch.run.launched import check_launched_once
from hpsearch.run.observing import checked_observers, names_of
from hpsearch.run.rerunning import plan_rerun
from hpsearch.run.simulate import IN_MEMORY, run_in_memory
from hpsearch.run.study_run import Run, create_study
from hpsearch.run.warm_start import recorded, warm_start_of
from hpsearch.run.whole_sweep import check_whole, read_whole
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.simulation import Simulation
from hpsearch.sweep.file import parallel_from_mapping, scaling_from_mapping, search_from_mapping
from hpsearch.sweep.parameters import space_of
from hpsearch.sweep.reader import listed
from hpsearch.sweep.sweep import Checkpoints, Limits, Method, Metric, Parallel, Resources, Scaling, Search, Sweep
from hpsearch.sweep.table_name import is_table, table_and_task
from hpsearch.trainable.trainables import unwrapped
from hpsearch.trial import Goal
from hpsearch.warm_start.read import Given
from hpsearch.worker.preflight import check_end

__all__ = ["rerun", "search"]


def search(
    trainable: str | Callable[..., Any] | Simulation | Sweep,
    sweep: Sweep | Mapping[str, Any] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    constraints: Sequence[str] = (),
    outcome_constraints: Sequence[str] = (),
    metric: str | Metric | Sequence[Metric] | None = None,
    goal: Goal = "minimize",
    metric_scope: Literal["last", "best"] = "last",
    metric_target: float | None = None,
    method: Method = "random",
    suggestions: Search | Mapping[str, Any] | None = None,
    early_terminate: EarlyTerminate | None = None,
    max_iter: int | None = None,
    run_cap: int | None = None,
    points_to_try: Sequence[Mapping[str, Any]] = (),
    warm_start: Given | Sequence[Given] | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float = 0,
    workers_per_trial: int = 1,
    max_workers_per_trial: int | None = None,
    elastic: bool = True,
    trials_per_worker: int | Literal["auto"] = 1,
    fuse: Literal["auto", "rounding"] = "auto",
    fresh_process: bool = False,
    scaling: Scaling | Mapping[str, Any] | None = None,
    parallel: Parallel | Mapping[str, Any] | None = None,
    max_time: float | None = None,
    trial_timeout: float | None = None,
    max_retries: int = 0,
    max_failures: int | Literal["auto", "none"] = "auto",
    patience: int | None = None,
    keep_checkpoints: Literal["best", "all"] = "best",
    checkpoint_every: int | None = None,
    seed: int = 0,
    name: str | None = None,
    directory: str | Path | None = None,
    backend: BackendName = "ray",
    address: str | None = None,
    tensorboard: bool = True,
    observers: Sequence[str | Observer] | None = None,
    callbacks: Sequence[Callback] = (),
    on_end: str | Sequence[str] | None = None,
    progress: bool = True,
) -> Study:
    """Run a sweep to its end and give what came of it.

    On a directory that holds the same sweep it goes on where that stands, or gives it when it is finished; with a
    larger `run_cap` or more brackets it goes on from there. One that ended at its `metric_target`, or by its
    `patience`, goes on with another one, or with none.

    Ctrl-C ends the sweep at the next reports, and twice at once; then KeyboardInterrupt is raised. SIGTERM, SIGHUP,
    SIGUSR1 and SIGUSR2 do likewise, and raise SystemExit. The study is kept. Stopped in another way, it is given as it
    stands.

    Args:
        trainable: A function or class, its import path, or a whole `Sweep`.
        sweep: A whole sweep for `trainable`, instead of the arguments from `parameters` to `name`: a `Sweep`, or what a
            sweep file holds, such as W&B's dictionary.
        parameters: Names to distributions and structures; a plain value is a constant, a list a choice, a mapping a
            group, or one parameter in W&B's notation: `{"min": 0.0, "max": 0.5}`.
        constraints: Expressions over parameters that every trial makes true.
        outcome_constraints: Bounds on reported metrics, such as `"latency_ms <= 20"`: trials that break them rank
            behind all others.
        metric: Which of the reported metrics decides: its name, or a `Metric`; or a list of them, where several do.
        goal: `"minimize"` or `"maximize"`; this and the next two belong to a name.
        metric_scope: Which of a trial's reports gives its value: `"last"`, or `"best"` so far.
        metric_target: The sweep ends as soon as any trial reports a value as good as this one, or better.
        method: `"random"`, `"grid"`, `"qmc"`, `"tpe"`, `"gp"`, `"cmaes"`, `"bohb"`, `"curves"`, `"evolution"`,
            `"spectral"`, `"pbt"`, or the import path of a searcher of your own or of one of Optuna's samplers.
        suggestions: How a method that learns is asked: a `Search`, or a mapping of its keys; `search` in a sweep file.
        early_terminate: `Hyperband(...)`, `SuccessiveHalving(...)`, `ASHA(...)`, `PASHA(...)`, `MedianStopping(...)`,
            `Bands(...)`, `PBT(...)` or None.
        max_iter: Iterations of every trial, where nothing terminates early.
        run_cap: Most trials that are created.
        points_to_try: Params known to be good, tried first.
        warm_start: Results that exist, which a method that learns begins with: a study's directory, a CSV file, a
            storage of Optuna's as `sqlite:///study.db#name`, a `Study` of hpsearch or Optuna, a DataFrame; or several.
            On a directory that holds the sweep: the same, or None.
        workers: How many there are, each for a trial or a part of one; None: as many as there is room for.
        cpus_per_worker: CPUs of each; also torch's threads.
        gpus_per_worker: GPUs of each; a fraction shares a device.
        workers_per_trial: Workers that train a trial together, at least.
        max_workers_per_trial: Workers that a trial may get while nothing else can use them; None: no more than
            `workers_per_trial`.
        elastic: False: every trial runs on `workers_per_trial`.
        trials_per_worker: Trials that a worker trains beside each other, as lanes of one computation, where the
            trainable is a `Trainer`; "auto": 16 where a worker has one CPU and no GPU. It changes no more of a
            result than `workers` does.
        fuse: "auto": as one computation where each has the bits that it has alone; "rounding": always of
            `trials_per_worker` trials, on which results then depend, also where a worker has a GPU.
        fresh_process: Run each segment in a worker process that ran nothing before; on Ray only.
        scaling: How batch and learning rate follow the workers of a trial: a `Scaling`, or a mapping of its keys.
        parallel: How several workers train one trial: a `Parallel`, or a mapping of its keys; parameters of the group
            `parallel` stand over it.
        max_time: Seconds after which the sweep ends; it can be resumed with more.
        trial_timeout: Seconds that one trial may run.
        max_retries: How often a trial that raises is tried again, from its newest checkpoint.
        max_failures: Failed trials at which the sweep ends with the mistake; `"auto"`: where they are the first five
            of all, or half of twenty or more; `"none"`: never.
        patience: Trials in a row that have ended without a better value than any before, at which the sweep ends.
        keep_checkpoints: `"best"`: of the trials that ended only the best one's; or `"all"`.
        checkpoint_every: Iterations between checkpoints inside a segment.
        seed: All randomness of the search comes from it.
        name: The sweep's name; None: the directory's or the trainable's.
        directory: Where the study lies; None: the next free `runs/<name>-<n>`. `":memory:"` writes nothing, for
            thousands of simulated trials a second; nobody watches, and it can't be resumed.
        backend: `"ray"`; `"inline"`: in this process, for a debugger; or `"simulated"`: a recorded table, or a class
            derived from `Curves` or `Steps`, on a virtual clock.
        address: A Ray cluster to join.
        tensorboard: Write TensorBoard's event files; False: not even if the observers name it.
        observers: Who watches: names of observers, import paths `package.module:Class`, or instances; None:
            `["tensorboard"]`, or whom the whole sweep names.
        callbacks: Functions that are called in this process with the `TrialRow` of each trial that has ended, in order;
            one that raises is named and called no more, and `StopSearch` ends the sweep.
        on_end: A command for the end of the run: words, or a line for the shell.
        progress: Show how the sweep stands.

    Raises:
        SweepError: The arguments ask for something that can't be done, or for another sweep than the directory's.
        HpsearchError: It can't be run.
        KeyboardInterrupt: Ctrl-C ended it; its `directory` is the study's.
        SystemExit: Another signal did, with exit code 128 and its number (143 for SIGTERM); likewise.
    """
    arguments = dict(locals())
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
    place = None if directory is None or in_memory else StudyDirectory(Path(directory).expanduser())
    if isinstance(trainable, Sweep):
        if sweep is not None:
            raise SweepError("search: two sweeps were given; pass one, alone or behind its trainable")
        sweep, code = trainable, None
    else:
        code = trainable
    if sweep is not None:
        check_whole(sweep, arguments, _defaults())
    if isinstance(sweep, Mapping):
        path = _import_path(code)
        sweep = read_whole(sweep, path, name or _last_name(path), progress)
    if sweep is None:
        if parameters is None or metric is None:
            missing = "parameters" if parameters is None else "metric"
            raise SweepError(
                f"search: {missing} is required: search(train, parameters={{'lr': LogUniform(1e-4, 1.0)}}, "
                "metric='accuracy', goal='maximize', ...)"
            )
        path = _import_path(code)
        sweep = Sweep(
            name=name or (place.path.name if place is not None else _last_name(path)),
            trainable=path,
            metric=_metric(metric, goal, metric_scope, metric_target),
            outcome_constraints=tuple(listed(outcome_constraints, ("outcome_constraints",))),
            method=method,
            search=suggestions if isinstance(suggestions, Search) else search_from_mapping(suggestions or {}),
            parameters=space_of(parameters, constraints),
            early_terminate=early_terminate,
            max_iter=max_iter,
            run_cap=run_cap,
            points_to_try=tuple(listed(points_to_try, ("points_to_try",))),
            resources=Resources(
                workers,
                cpus_per_worker,
                gpus_per_worker,
                workers_per_trial,
                max_workers_per_trial,
                elastic,
                fresh_process,
                trials_per_worker,
                fuse,
            ),
            scaling=scaling if isinstance(scaling, Scaling) else scaling_from_mapping(scaling or {}),
            parallel=parallel
            if parallel is None or isinstance(parallel, Parallel)
            else parallel_from_mapping(parallel),
            limits=Limits(max_time, trial_timeout, max_retries, max_failures, patience),
            checkpoints=Checkpoints(keep_checkpoints, checkpoint_every),
            seed=seed,
            observers=("tensorboard",) if observers is None else names_of(observers),
            on_end=on_end if on_end is None or isinstance(on_end, str) else tuple(on_end),
        )
    elif on_end is not None:
        sweep = replace(sweep, on_end=on_end if isinstance(on_end, str) else tuple(on_end))
    if in_memory and (callbacks or sweep.on_end is not None):
        named = "callbacks" if callbacks else "on_end"
        raise SweepError(f"search: {named} must not be given with directory={IN_MEMORY!r}, which nobody watches")
    sweep.check_runs()
    folders = _search_path(code)
    past = () if warm_start is None else warm_start
    given = tuple(past) if isinstance(past, list | tuple) else (cast("Given", past),)
    if in_memory:
        made = make_backend(backend, sweep, code, folders=folders)
        assert isinstance(made, SimulatedBackend)
        return run_in_memory(sweep, made, warm_start_of(given, sweep, None))
    assert not isinstance(code, Simulation)
    if backend != "simulated" and not is_table(sweep.trainable):
        check_end(sweep, code, folders)
    if backend != "ray" or is_table(sweep.trainable):
        make_backend(backend, sweep, code, address, folders)  # what can't be run leaves no study behind
    watching = checked_observers(observers, sweep, folders)
    begins_with = warm_start_of(given, sweep, place)
    if place is None or not place.exists():
        place = create_study(sweep, None if place is None else place.path, more=recorded(begins_with))
    run = Run(
        trainable=code,
        backend=lambda sweep: make_backend(backend, sweep, code, address, folders),
        display=choose_progress(sys.stdout, quiet=not progress),
        tensorboard=tensorboard,
        observers=watching,
        callbacks=tuple(callbacks),
        search_path=folders,
        virtual=backend == "simulated",
        starting="starting Ray" if backend == "ray" else "",
    )
    return run_called(place, sweep, run, "search")


def _defaults() -> dict[str, Any]:
    """Give the arguments of `search` that a sweep is made of, with what they are where nobody gives them."""
    known = inspect.signature(search).parameters
    names = [*known]
    made_of = names[names.index("parameters") : names.index("name") + 1]
    return {name: known[name].default for name in made_of if name != "warm_start"}


def _metric(
    metric: str | Metric | Sequence[Metric], goal: Goal, scope: Literal["last", "best"], target: float | None
) -> Metric | tuple[Metric, ...]:
    if isinstance(metric, str):
        return Metric(metric, goal, scope, target)
    if (goal, scope, target) != ("minimize", "last", None):
        raise SweepError(
            "search: goal, metric_scope and metric_target belong to a metric's name; say it in Metric(...)"
        )
    return metric if isinstance(metric, Metric) else tuple(metric)


def rerun(
    study: str | Path,
    top: int = 5,
    seeds: int = 3,
    *,
    iterations: int | None = None,
    trainable: str | Callable[..., Any] | None = None,
    workers: int | None = None,
    directory: str | Path | None = None,
    backend: BackendName = "ray",
    address: str | None = None,
    tensorboard: bool = True,
    observers: Sequence[str | Observer] | None = None,
    progress: bool = True,
) -> Rerun:
    """Run the best configurations of a study again, each several times with other seeds and at full length.

    It makes a study of its own, as any other; on a directory that holds this rerun it goes on where that stands.

    Args:
        study: The directory of a study that has ended.
        top: How many configurations: the params of the best trials, equal ones once.
        seeds: Runs of each.
        iterations: Of each run; None: as many as the study gives its trials at most.
        trainable: A function or class, or its import path; None: what the study names, which must be importable.
        workers: How many there are; None: as many as the study's sweep says.
        directory: Where the new study lies; None: the next free `runs/<name>-rerun-<n>`.
        backend: As of `search`.
        address: A Ray cluster to join.
        tensorboard: Write TensorBoard's event files.
        observers: Who watches, as of `search`; None: whom the study's sweep names.
        progress: Show how the sweep stands.

    Raises:
        StudyInUseError: A live process runs the study.
        SweepError: It can't be rerun as asked, or the directory holds another rerun.
        HpsearchError: No trial has a value, or it can't be run.
        KeyboardInterrupt, SystemExit: A signal ended it, as of `search`.
    """
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
    if workers is not None:
        sweep = replace(sweep, resources=replace(sweep.resources, workers=workers))
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
        make_backend(backend, sweep, trainable, address, folders)
    watching = checked_observers(observers, sweep, folders)
    display = choose_progress(sys.stdout, quiet=not progress)
    for note in plan.notes:
        display.note(note)
    place = plan.opened(None if directory is None else Path(directory).expanduser())
    run = Run(
        trainable=trainable,
        backend=lambda sweep: make_backend(backend, sweep, trainable, address, folders),
        display=display,
        tensorboard=tensorboard,
        observers=watching,
        search_path=folders,
        virtual=backend == "simulated",
        starting="starting Ray" if backend == "ray" else "",
    )
    made = run_called(place, sweep, run, "rerun").rerun
    assert made is not None
    return made


def _import_path(trainable: str | Callable[..., Any] | Simulation | None) -> str:
    """Give the name by which a study remembers its trainable."""
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
    # What a partial adds to the function has no name by which another process could import it.
    return f"{target.__module__ if target is trainable else '__main__'}:{name}"


def _last_name(path: str) -> str:
    """Give the name of a trainable, or of a table's file, by its path."""
    return Path(table_and_task(path)[0]).stem if is_table(path) else path.rpartition(":")[2].rpartition(".")[2]


def _search_path(trainable: str | Callable[..., Any] | Simulation | None) -> tuple[str, ...]:
    """Give the folders where the trainable's module is found: this one, and the one that it was imported from."""
    here = str(Path.cwd())
    module = sys.modules.get(getattr(unwrapped(trainable), "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        return (here,)
    root = Path(file).resolve().parents[module.__name__.count(".") + (Path(file).name == "__init__.py")]
    return tuple(dict.fromkeys((here, str(root))))
