"""Commands that run a sweep: `run`, `rerun`, `resume`, `retry` and `plan`."""

from __future__ import annotations

import argparse
import atexit
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from hpsearch.backends import make_backend
from hpsearch.cli.steer import left
from hpsearch.cli.which_study import pasted
from hpsearch.config.checks import InvalidKey
from hpsearch.errors import HpsearchError, JournalError, SweepError, TrainableError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import add_tags, check_tags, write_note
from hpsearch.observers.screen import choose_progress
from hpsearch.observers.times import Times
from hpsearch.results.result_warnings import result_warnings, without_value
from hpsearch.results.study import Study, load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.launched import check_launched_once
from hpsearch.run.observing import check_observers
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.run.plan_lanes import shapes_lines
from hpsearch.run.rerunning import plan_rerun
from hpsearch.run.study_run import Run, create_study, run_study
from hpsearch.run.warm_start import recorded, warm_start_of
from hpsearch.study.stopping import CRITERIA
from hpsearch.sweep.changes import change_sweep
from hpsearch.sweep.file import load_sweep, locate, sweep_notes
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.table_name import is_table
from hpsearch.tables.groups import by_strategy
from hpsearch.tables.layout import screen_of, table_text
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.status import way_on
from hpsearch.tables.trial_table import rows_to_table
from hpsearch.tables.wording import front_line, shown_path
from hpsearch.trainable.macros import DEFAULT_COMMAND
from hpsearch.trial import TrialRow, TrialState
from hpsearch.worker.job import CommandLine
from hpsearch.worker.preflight import check_end, missing_here
from hpsearch.worker.wandb_in_script import wandb_note

__all__ = ["blame", "go_on", "plan", "rerun", "run"]

_EXIT_CODES = {
    **dict.fromkeys(("finished", "target", "patience"), 0),
    **dict.fromkeys(("stopped", "max_time"), 3),
    **dict.fromkeys(("interrupted", "cancelled", "killed"), 130),  # killed: a second Ctrl-C struck while it was written
}

_MOST_PLANNED = 1_000
"""Trials of a sweep that is planned before it runs."""

_LEADERS = 5
"""Trials in the table at the end."""


def run(given: argparse.Namespace) -> int:
    """Run a sweep file: in a new directory, or on in one that holds the same sweep."""
    check_launched_once("hpsearch run")
    check_tags(given.tag)
    sweep = _with_workers(load_sweep(given.sweep, given.overrides), given.workers)
    _tell_notes(
        [*sweep_notes(given.sweep, given.overrides), *_without_end(sweep), *_from_zero(sweep), *_elsewhere(sweep)]
    )
    place = None if given.dir is None else StudyDirectory(given.dir)
    if place is None or not place.exists():
        with _observers_located(given.sweep):
            _check_runs_here(given, sweep, (str(given.sweep.resolve().parent),))
        begins_with = warm_start_of(given.warm_start, sweep, None)
        text = given.sweep.read_text(encoding="utf-8")
        place = create_study(sweep, None if place is None else place.path, text, more=recorded(begins_with))
    else:
        warm_start_of(given.warm_start, sweep, place)

    def label() -> None:
        if given.tag:
            add_tags(place, given.tag)
        if given.note is not None:
            write_note(place, given.note)

    return _run(place, sweep, given, given.sweep, held=label)


def rerun(given: argparse.Namespace) -> int:
    """Run the best configurations of a study again, in a new directory or on in one that holds this rerun."""
    check_launched_once("hpsearch rerun")
    study = load(given.study)
    asked = plan_rerun(study, given.top, given.seeds, given.iterations)
    asked = replace(asked, sweep=_with_workers(asked.sweep, given.workers))
    _check_importable(study.directory, asked.sweep, f"hpsearch.rerun({str(given.study)!r}, trainable=...)")
    for note in () if given.quiet else asked.notes:
        print(note, flush=True)
    if given.dir is None or not StudyDirectory(given.dir).exists():
        _check_runs_here(given, asked.sweep, asked.folders)
    return _run(asked.opened(given.dir), asked.sweep, given, asked.source, str(asked.folder))


def _check_runs_here(given: argparse.Namespace, sweep: Sweep, folders: Sequence[str]) -> None:
    """Refuse what can't be run where it is asked for, or watched as asked, before a study is made of it."""
    folders = (str(Path.cwd()), *folders)
    if given.backend != "simulated" and not is_table(sweep.trainable):
        check_end(sweep, None, folders)
    if given.backend != "ray" or is_table(sweep.trainable):
        make_backend(given.backend, sweep, None, given.address, folders)
    check_observers(sweep.observers, folders)


def _check_importable(path: Path, sweep: Sweep, call: str) -> None:
    if (sweep.trainable or "").startswith("__main__:"):
        raise JournalError(
            f"{path}: its trainable {sweep.trainable!r} was given from Python and can't be imported here; go on "
            f"with {call}"
        )


def go_on(given: argparse.Namespace) -> int:
    """Go on with a study; where failed trials are given, they run again."""
    check_launched_once("hpsearch resume" if given.failed is None else "hpsearch retry")
    place = StudyDirectory(given.dir)
    with Journal.read(place.journal) as journal:
        record = journal.study()
    study = load(place.path)
    if place.holder() is not None and not study.is_told and study.state in ("running", "paused"):
        if study.state == "paused" and given.failed is None:
            return _go_on_there(place, given)
        if given.failed is not None:
            return left(place, "retry", {"trials": given.failed}, "they run again there, as soon as workers are free")
    sweep = _with_workers(change_sweep(study.sweep, given.overrides), given.workers)
    if study.is_told and given.failed is not None:
        with AskTell(sweep, directory=place.path) as asking:
            asking.retry(*given.failed)
        ended = f", once the sweep goes on: {asking.reason}" if asking.reason else ""
        print(f"they will be asked for again{ended or f': hpsearch ask {pasted(place.path)}'}")
        return 0
    call = "rerun(..., trainable=..., directory=...)" if "rerun" in record else "search(..., directory=...)"
    _check_importable(place.path, sweep, f"the same call of hpsearch.{call}")
    folder = record.get("provenance", {}).get("directory", "")
    source = None if sweep.source is None else Path(folder, sweep.source)
    return _run(place, sweep, given, source, folder)


def _go_on_there(place: StudyDirectory, given: argparse.Namespace) -> int:
    """Let the process that has paused a study go on with it."""
    if given.overrides or given.workers is not None:
        raise SweepError(
            f"{place.path}: {place.holder()} has paused this study and goes on with it as it is: leave the options "
            f"out, extend it with `hpsearch extend {pasted(place.path)}`, or stop it first"
        )
    return left(place, "resume", {}, f"it goes on in {place.holder()}; see: hpsearch watch {pasted(place.path)}")


def plan(given: argparse.Namespace) -> int:
    """Show what a sweep would run."""
    sweep = _with_workers(load_sweep(given.sweep, given.overrides, runs=False), given.workers)
    _tell_notes([*sweep_notes(given.sweep, given.overrides), *_missing(sweep, given.sweep), *_elsewhere(sweep)])
    made = make_plan(sweep, sweep.resources.workers)
    print(plan_text(made), end="", flush=True)
    for line in shapes_lines(made, (str(Path.cwd()),)):
        print(line)
    if (sweep.trainable or sweep.program or sweep.command) and not is_table(sweep.trainable):
        sets = "".join(f" --set {shlex.quote(one)}" for one in given.overrides)
        command = f"hpsearch check {shlex.quote(str(given.sweep))}{sets}"
        print(f"check        {command} tries a trial, and says what a sweep of it would get wrong")
    return 0


def _missing(sweep: Sweep, source: Path) -> list[str]:
    """Say what of the trainable isn't here; it may be where the sweep is to run."""
    folder = str(Path.cwd())
    if sweep.trainable is not None:
        trainable: str | CommandLine = sweep.trainable
    elif sweep.program is not None or sweep.command is not None:
        trainable = CommandLine(sweep.program, sweep.command or DEFAULT_COMMAND, folder)
    else:  # it can only be asked and told
        return []
    folders = tuple(dict.fromkeys((folder, str(source.resolve().parent))))
    if is_table(sweep.trainable):
        return []
    check_end(sweep, None, folders)
    told = missing_here(trainable, folders)
    return [] if told is None else [f"it wouldn't run here: {told}"]


def _elsewhere(sweep: Sweep) -> list[str]:
    """Say that a script logs to W&B, and not to this sweep."""
    if sweep.program is None:
        return []
    note = wandb_note(CommandLine(sweep.program, sweep.command or DEFAULT_COMMAND, str(Path.cwd())))
    return [] if note is None else [note]


def _without_end(sweep: Sweep) -> list[str]:
    if not sweep.unbounded or sweep.limits.max_time is not None:
        return []
    return ["run_cap isn't given: trials are created until the sweep is stopped, with Ctrl-C or hpsearch stop"]


def _from_zero(sweep: Sweep) -> list[str]:
    """Say what a script costs that saves no checkpoint, where trials pause and go on from theirs."""
    early, run_cap = sweep.early_terminate, sweep.run_cap
    bounded = not sweep.unbounded and (run_cap is not None or not sweep.searcher.capabilities.finite)
    if early is None or early.capabilities.live:
        return []
    if sweep.trainable is not None or not bounded or (run_cap or 0) > _MOST_PLANNED:
        return []
    if sweep.program is not None and "checkpoint" in _text_of(sweep.program).lower():
        return []
    plan = make_plan(sweep, max(sweep.resources.workers or 1, sweep.resources.workers_per_trial))
    if plan.iterations_from_zero == plan.iterations:
        return []
    told = f"{plan.iterations_from_zero:,} iterations in all in place of {plan.iterations:,}"
    return [f"a script that saves no checkpoint begins anew wherever its trial goes on: {told}"]


def _text_of(program: str) -> str:
    try:
        return Path(program).read_text("utf-8", "replace")
    except OSError:
        return ""


def _tell_notes(notes: Sequence[str]) -> None:
    """Say what a file means here that may surprise, apart from what is printed for programs to read."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr, flush=True)


def _with_workers(sweep: Sweep, workers: int | None) -> Sweep:
    """Give the sweep with the `--workers` of the command line."""
    if workers is None:
        return sweep
    try:
        return replace(sweep, resources=replace(sweep.resources, workers=workers))
    except InvalidKey as error:
        advice = f"\n  {error.advice}: --set resources.workers_per_trial={workers}" if error.advice else ""
        raise SweepError(f"--workers {workers}: {error.problem}{advice}") from None


def _run(
    place: StudyDirectory,
    sweep: Sweep,
    given: argparse.Namespace,
    source: Path | None,
    folder: str = "",
    held: Callable[[], object] = lambda: None,
) -> int:
    """Run a study, whose sweep file is `source` and which was made in `folder`, and say what came out."""
    search_path = [str(Path.cwd()), folder, "" if source is None else str(source.resolve().parent)]
    folders = tuple(dict.fromkeys(path for path in search_path if path))
    times = _timed(given)
    run = Run(
        trainable=None,
        backend=lambda sweep: make_backend(given.backend, sweep, None, given.address, folders),
        display=choose_progress(sys.stdout, given.quiet),
        tensorboard=not given.no_tensorboard,
        search_path=folders,
        durable=given.durable,
        virtual=given.backend == "simulated",
        starting="starting Ray" if given.backend == "ray" else "",
        times=times,
        verbose=given.verbose,
        held=held,
    )
    try:
        with _observers_located(source, place):
            return _report(run_study(place, sweep, run, given.failed))
    except TrainableError as error:
        mend = f"mend it, then go on with: hpsearch resume {pasted(place.path)}"
        raise TrainableError(f"{blame(source, str(error))}{error}\n{mend}") from error


def _timed(given: argparse.Namespace) -> Times:
    """Give what notes where the time goes, which is told when this process has ended all that it started."""
    times = Times()
    if given.own_process and not given.quiet:
        began = psutil.Process().create_time()

        def tell() -> None:
            if words := times.words(began):
                with suppress(OSError, ValueError):  # who read it has gone
                    print(words, flush=True)

        atexit.register(tell)  # before Ray's own, which then comes first
    return times


@contextmanager
def _observers_located(path: Path | None, place: StudyDirectory | None = None) -> Iterator[None]:
    """Add to a mistake in a sweep's observers where the file names them; where there is a study, how it goes on."""
    try:
        yield
    except InvalidKey as error:
        if error.key[:1] != ("observers",):
            raise
        where = f"{locate(path, 'observers')}: " if path is not None and path.is_file() else ""
        resume = "" if place is None else f"hpsearch resume {pasted(place.path)}"
        mend = f"\nmend it, then go on with: {resume}\nor with others: {resume} --set observers=csv" if resume else ""
        raise SweepError(f"{where}{error}{mend}") from error


def blame(path: Path | None, message: str) -> str:
    """Give the place in the sweep file that a broken contract points at."""
    if path is None or not path.is_file():
        return ""
    key = _metric_key(path, message) or ("program" if _has_program(path) else "trainable")
    key = next((named for named in ("program", "command") if message.startswith(f"`{named}`")), key)
    return f"{locate(path, key)}: {key}: "


def _metric_key(path: Path, message: str) -> str | None:
    """Give the key that asks for the metric which a report lacked; None where nothing is said of one."""
    missed = re.search(r"the sweep's metric '(.+?)'", message)
    if missed is None:
        return None
    try:
        objective = load_sweep(path).objective
    except HpsearchError:
        return "metric"
    names = [goal.name for goal in objective.goals]
    if missed[1] in names:
        return f"metric.{names.index(missed[1])}.name" if objective.several else "metric.name"
    constrained = [constraint.metric for constraint in objective.constraints]
    if missed[1] in constrained:
        return f"outcome_constraints.{constrained.index(missed[1])}"
    return "metric" if objective.several else "metric.name"


def _has_program(path: Path) -> bool:
    try:
        return load_sweep(path).trainable is None
    except HpsearchError:
        return False


def _report(study: Study) -> int:
    """Say what came out, where it lies and what to do next."""
    where = shown_path(study.directory, Path.cwd())
    pasted = shlex.quote(where)
    if study.state not in ("finished", *CRITERIA):
        print(f"{study.state}; {way_on(study, where)}")
        return _EXIT_CODES.get(study.state, 1)
    rows = _best_first(study)
    if not study.sweep.objective.goals:
        ended = [row for row in study.trials if row.metrics]
        print(rows_to_table(*outlined(ended[-_LEADERS:], study.sweep.parameters), study.sweep.objective), end="")
        print("best:        none, as the sweep names no metric")
        print(f"trials:      hpsearch trials {pasted}")
        return 0
    if not rows:
        # Of trials that reported NaN `status` has nothing to say.
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
            constants_of(names, study.sweep.parameters),
            f"with hpsearch trials {pasted} --columns NAME,...",
        )
        screen = screen_of(sys.stdout)
        text = rows_to_table(shown, names, objective, constants=constants, screen=screen, see=see)
        if strategies := by_strategy(study):
            text = text.rstrip("\n") + "\n" + table_text(strategies, screen)
        print(text, end="")
        print(_what_is_best(study, pasted), end="")
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


def _best_first(study: Study) -> list[TrialRow]:
    """Give the trials that have a score, best first."""
    return [row for row in study.ranked if row.score is not None]


def _what_is_best(study: Study, pasted: str) -> str:
    objective, leaders = study.sweep.objective, study.leaders
    if objective.several:
        front = f"front:       {front_line(leaders, objective)}\n"
        return front + (f"             hpsearch trials {pasted} --front\n" if leaders[0].feasible else "")
    (best,) = leaders
    broken = "" if best.feasible else f", which breaks {' and '.join(objective.broken(best.score))}, as all do"
    return f"best:        trial {best.number}, {objective.title} {best.values[0]:.6g}{broken}\n"
