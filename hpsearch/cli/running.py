"""Functions for all commands that run a sweep: arguments, the run, and the output at its end."""

from __future__ import annotations

import argparse
import atexit
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from hpsearch.backends import make_backend
from hpsearch.cli.arguments import pasted, positive
from hpsearch.config.checks import InvalidKey
from hpsearch.config.import_paths import installing, is_installed, is_table
from hpsearch.errors import HpsearchError, JournalError, SweepError, TrainableError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.observers.observer_hub import Times
from hpsearch.observers.progress import choose_progress
from hpsearch.results.result_warnings import result_warnings, without_value
from hpsearch.results.study import Study
from hpsearch.run.observing import check_observers
from hpsearch.run.study_run import RunSettings, run_study
from hpsearch.serving.server import Listen
from hpsearch.study.stopping import CRITERIA
from hpsearch.sweep.file import locate
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.groups import by_strategy
from hpsearch.tables.layout import screen_of, table_text
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.repeats import lead_text
from hpsearch.tables.status import way_on
from hpsearch.tables.trials import rows_to_table
from hpsearch.tables.wording import front_line, shown_path
from hpsearch.trial import TrialState
from hpsearch.worker.preflight import check_end

_EXIT_CODES = {
    **dict.fromkeys(("finished", "target", "patience"), 0),
    **dict.fromkeys(("stopped", "max_time"), 3),
    **dict.fromkeys(
        ("interrupted", "cancelled", "killed"), 130
    ),  # killed: a second Ctrl-C ended the process before the state was written
}

_LEADERS = 5
"""Number of trials in the table at the end."""


def check_runs_here(args: argparse.Namespace, sweep: Sweep, folders: Sequence[str]) -> None:
    """Check the backend and the observers before a study is created."""
    folders = (str(Path.cwd()), *folders)
    if args.backend != "simulated" and not is_table(sweep.trainable):
        check_end(sweep, None, folders)
    listen = _listen(args)
    if args.backend != "ray" or is_table(sweep.trainable):
        make_backend(args.backend, sweep, None, args.address, folders, listen)
    check_observers(sweep.observers, folders)


def _listen(args: argparse.Namespace) -> Listen | None:
    """Return where agents reach the driver; None: by files."""
    if args.listen is None:
        for option in ("tls_cert", "tls_key", "insecure"):
            if getattr(args, option):
                raise HpsearchError(f"--{option.replace('_', '-')}: needs --listen HOST:PORT, which it is about")
        return None
    if args.backend != "agents":
        raise HpsearchError(f"--listen: needs --backend agents, got {args.backend}")
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise HpsearchError(f"--listen: must be HOST:PORT, such as 0.0.0.0:8643, got {args.listen!r}")
    for package in ("starlette", "uvicorn"):
        if not is_installed(package):
            raise HpsearchError(f"--listen: needs {package}, which isn't installed: {installing('serve')}")
    return Listen(host.strip("[]"), int(port), args.tls_cert, args.tls_key, args.insecure)


def check_importable(path: Path, sweep: Sweep, call: str) -> None:
    """Check that a study's trainable can be imported. If it can't, the error names `call`, which resumes the study."""
    if (sweep.trainable or "").startswith("__main__:"):
        raise JournalError(
            f"{path}: its trainable {sweep.trainable!r} was given from Python and can't be imported here; continue "
            f"with {call}"
        )


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on a sweep file to stderr, so that they don't mix with output for programs."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr, flush=True)


def with_workers(sweep: Sweep, workers: int | None) -> Sweep:
    """Return the sweep with the number of workers from `--workers`."""
    if workers is None:
        return sweep
    try:
        return replace(sweep, resources=replace(sweep.resources, workers=workers))
    except InvalidKey as error:
        advice = f"\n  {error.advice}: --set resources.workers_per_trial={workers}" if error.advice else ""
        raise SweepError(f"--workers {workers}: {error.problem}{advice}") from None


def run_and_report(
    study_dir: StudyDirectory,
    sweep: Sweep,
    args: argparse.Namespace,
    source: Path | None,
    folder: str = "",
    on_locked: Callable[[], object] = lambda: None,
    failed: Sequence[int] | None = None,
) -> int:
    """Run a study, and print the results.

    Args:
        study_dir: The study's directory.
        sweep: The sweep.
        args: The command line's arguments.
        source: The sweep file.
        folder: Folder in which the study was created.
        on_locked: Called once the study is locked.
        failed: Failed trials to run again; empty: all failed trials; None: none.
    """
    search_path = [str(Path.cwd()), folder, "" if source is None else str(source.resolve().parent)]
    folders = tuple(dict.fromkeys(path for path in search_path if path))
    times = _timed(args)
    run = RunSettings(
        trainable=None,
        backend=lambda sweep: make_backend(args.backend, sweep, None, args.address, folders, _listen(args)),
        display=choose_progress(sys.stdout, args.quiet),
        tensorboard=not args.no_tensorboard,
        search_path=folders,
        durable=args.durable,
        virtual=args.backend == "simulated",
        starting="starting Ray" if args.backend == "ray" else "",
        times=times,
        verbose=args.verbose,
        on_locked=on_locked,
    )
    try:
        with observers_located(source, study_dir):
            return _report(run_study(study_dir, sweep, run, failed))
    except TrainableError as error:
        mend = f"mend it, then continue with: hpsearch resume {pasted(study_dir.path)}"
        raise TrainableError(f"{blame(source, sweep, error)}{error}\n{mend}") from error


def _timed(args: argparse.Namespace) -> Times:
    """Return an object that records the run's times. They are printed at the end of this process."""
    times = Times()
    if args.own_process and not args.quiet:
        began = psutil.Process().create_time()

        def tell() -> None:
            if text := times.text(began):
                with suppress(OSError, ValueError):  # the reader of our output has ended
                    print(text, flush=True)

        atexit.register(tell)  # registered before Ray's own handler, which then runs first
    return times


@contextmanager
def observers_located(path: Path | None, study_dir: StudyDirectory | None = None) -> Iterator[None]:
    """Add the location in the sweep file to errors of observers, and for an existing study how to resume it."""
    try:
        yield
    except InvalidKey as error:
        if error.key[:1] != ("observers",):
            raise
        where = f"{locate(path, 'observers')}: " if path is not None and path.is_file() else ""
        resume = "" if study_dir is None else f"hpsearch resume {pasted(study_dir.path)}"
        mend = (
            f"\nmend it, then continue with: {resume}\nor with others: {resume} --set observers=csv" if resume else ""
        )
        raise SweepError(f"{where}{error}{mend}") from error


def blame(path: Path | None, sweep: Sweep, error: TrainableError) -> str:
    """Return the location in the sweep file that an error concerns."""
    if path is None or not path.is_file():
        return ""
    key, _, metric = error.key.partition(".")
    if key == "metric":
        key = _metric_key(sweep, metric)
    key = key or ("program" if sweep.trainable is None else "trainable")
    return f"{locate(path, key)}: {key}: "


def _metric_key(sweep: Sweep, metric: str) -> str:
    """Return the key of the sweep file that requires a metric."""
    objective = sweep.objective
    names = [goal.name for goal in objective.goals]
    if metric in names:
        return f"metric.{names.index(metric)}.name" if objective.several else "metric.name"
    return f"outcome_constraints.{[constraint.metric for constraint in objective.constraints].index(metric)}"


def _report(study: Study) -> int:
    """Print the results, their location and next steps; return the exit code."""
    where = shown_path(study.directory, Path.cwd())
    pasted = shlex.quote(where)
    if study.state not in ("finished", *CRITERIA):
        print(f"{study.state}; {way_on(study, where)}")
        return _EXIT_CODES.get(study.state, 1)
    rows = study.configurations or study.ranked
    rows = [row for row in rows if row.standing is not None]
    if not study.sweep.objective.goals:
        ended = [row for row in study.trials if row.metrics]
        print(rows_to_table(*outlined(ended[-_LEADERS:], study.sweep.parameters), study.sweep.objective), end="")
        print("best:        none, as the sweep names no metric")
        print(f"trials:      hpsearch trials {pasted}")
        return 0
    if not rows:
        # `status` doesn't explain trials that reported NaN.
        reported = all(row.metrics and row.state is not TrialState.FAILED for row in study.trials)
        see = "them with: hpsearch trials" if reported else "why with: hpsearch status"
        print(f"{study.state}, but {without_value(study)}; see {see} {pasted}")
        return 4
    if study.rerun is not None:
        print(study.rerun.text(screen_of(sys.stdout)), end="")
    else:
        objective = study.sweep.objective
        shown, names = outlined(rows[:_LEADERS], study.sweep.parameters)
        constants, see = (
            constants_of(names, study.spaces),
            f"with hpsearch trials {pasted} --columns NAME,...",
        )
        screen = screen_of(sys.stdout)
        text = rows_to_table(shown, names, objective, constants=constants, screen=screen, see=see)
        if strategies := by_strategy(study):
            text = text.rstrip("\n") + "\n" + table_text(strategies, screen)
        print(text, end="")
        print(_what_is_best(study, pasted), end="")
        if lead := lead_text(study):
            print(f"lead:        {lead}")
        for text in result_warnings(study):
            print(f"note:        {text}")
    print(f"trials:      hpsearch trials {pasted}")
    checkpoint = study.checkpoint_path(rows[0])
    if checkpoint is not None and study.rerun is None and not study.sweep.objective.several:
        print(f"checkpoint:  {shown_path(checkpoint, Path.cwd())}")
    if (study.directory / "tensorboard").is_dir():
        print(f"TensorBoard: hpsearch tensorboard {pasted}")
    print(f"report:      hpsearch report {pasted}")
    if study.state in CRITERIA:
        print(f"{study.state + ':':<12} {study.message}")
        print(f"             {way_on(study, where)}")
    return 0


def _what_is_best(study: Study, pasted: str) -> str:
    objective, leaders = study.sweep.objective, study.leaders
    if objective.several:
        front = f"front:       {front_line(leaders, objective)}\n"
        return front + (f"             hpsearch trials {pasted} --front\n" if leaders[0].feasible else "")
    (best,) = leaders
    broken = "" if best.feasible else f", which breaks {' and '.join(objective.broken(best.score))}, as all do"
    return f"best:        trial {best.number}, {objective.title} {best.values[0]:.6g}{broken}\n"


def add_place(command: argparse.ArgumentParser) -> None:
    """Add the options of the backend."""
    backends = ["ray", "inline", "simulated", "agents"]
    text = (
        "inline runs in this process, for a debugger; simulated plays a recorded table back, on a virtual clock; "
        "agents runs trials in processes of `hpsearch agent` on any machines"
    )
    command.add_argument("--workers", type=positive, metavar="N", help="workers: each runs a trial, or a part of one")
    command.add_argument("--backend", choices=backends, default="ray", help=text)
    command.add_argument("--address", help="a Ray cluster to join (default: RAY_ADDRESS, or a local Ray)")
    text = "let agents reach this sweep by HTTP, such as 0.0.0.0:8643 (default: by files in the study's directory)"
    command.add_argument("--listen", metavar="HOST:PORT", help=text)
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate in PEM, for --listen")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, if it isn't in the same file")
    command.add_argument("--insecure", action="store_true", help="let agents of other machines in without TLS")


def add_output(command: argparse.ArgumentParser) -> None:
    """Add the options on what a run writes and prints."""
    command.add_argument("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    text = "let the journal and its checkpoints survive the loss of power, at some cost in speed"
    command.add_argument("--durable", action="store_true", help=text)
    group = command.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print errors and the result alone")
    group.add_argument("-v", "--verbose", action="store_true", help="print what is decided on each trial, and why")
