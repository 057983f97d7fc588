"""Turn a request, of a user or of `hpsearch retry`, into events, or a reason for its refusal.

These functions have no effects. The process that holds the study journals the events in one transaction and applies
them: the one that runs it, a call of ask and tell, or the command itself if nobody holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from hpsearch.errors import HpsearchError, SweepError
from hpsearch.events import Added, Changed, Continued, Event, Extended, Pruned, Retried, Steered
from hpsearch.journal.journal import Request, person
from hpsearch.schedulers.base import NewTrial
from hpsearch.space import MissingParameter, Space
from hpsearch.study.change import change
from hpsearch.study.extension import extension
from hpsearch.study.state import SweepState
from hpsearch.study.trial_record import DECIDED
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.overrides import change_space, change_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import trials_named
from hpsearch.trial import Params, TrialState


def answer(
    request: Request,
    sweep_state: SweepState,
    where: str,
    refused: str = "",
    has_checkpoint: Callable[[str], bool] = lambda address: True,
) -> list[Event]:
    """Return the answer to a request, and its events.

    Args:
        request: The request.
        sweep_state: The sweep's state.
        where: The study's directory, quoted for a shell.
        refused: A reason to refuse it that the caller knows already.
        has_checkpoint: Whether the checkpoint with an address still exists.
    """
    events: list[Event] = []
    details = request.details
    if not refused:
        try:
            if request.verb == "extend" and _trains_on(details, sweep_state.sweep):
                events, notes = _trained_on(details, sweep_state, where, has_checkpoint)
                trials = [event.trial for event in events if isinstance(event, Continued)]
                details = {**details, "trials": trials, "notes": notes}
            else:
                events = follows(request, sweep_state, where)
        except HpsearchError as error:
            refused = str(error)
    return [Steered(request.verb, request.by, request.number or None, details, refused), *events]


def refusal(verb: str, ending: str | None, is_paused: bool) -> str:
    """Return why a run can't handle a request now; empty if it can.

    Args:
        verb: The kind of request.
        ending: How the run is about to end; None: it isn't.
        is_paused: Whether it is paused.
    """
    if verb in ("stop", "pause", "resume") and ending is not None:
        return f"the sweep ends already ({ending}), at the next reports of its trials"
    if verb == "pause" and is_paused:
        return "the sweep is paused already"
    return "the sweep isn't paused" if verb == "resume" and not is_paused else ""


def follows(request: Request, sweep_state: SweepState, where: str) -> list[Event]:
    """Return a request's events; none if it only concerns the process that runs the study.

    Raises:
        HpsearchError: The request is refused. The message has the reason and alternatives.
    """
    details = request.details
    match request.verb:
        case "extend":
            return [_extended(details, sweep_state)]
        case "retry":
            return list(retries(sweep_state, details.get("trials", ()), where))
        case "add":
            return list(_added(details["points"], sweep_state, where))
        case "change":
            return [_changed(details, sweep_state)]
        case "prune":
            return list(_pruned(details["trials"], person(request.by), sweep_state))
        case "pause" | "resume" | "stop" | "cancel":
            return []
    raise SweepError(f"the process that runs the study knows no {request.verb!r}: it is of another version")


def _trains_on(details: Mapping[str, Any], sweep: Sweep) -> bool:
    """Return whether an extension has ended trials train on, instead of raising `max_iter` of the scheduler."""
    early = sweep.early_terminate
    return "trials" in details or ("max_iter" in details and (early is None or "max_iter" not in early.raisable))


def _trained_on(
    details: Mapping[str, Any], sweep_state: SweepState, where: str, has_checkpoint: Callable[[str], bool]
) -> tuple[list[Event], list[str]]:
    """Return the events that have ended trials train on, and what the user should know.

    Raises:
        SweepError: A trial can't train on for another reason than a missing checkpoint, or none has a checkpoint.
    """
    until, requested = details["max_iter"], sorted(set(details.get("trials", ())))
    bounds = {name: value for name, value in details.items() if name not in ("max_iter", "trials")}
    events: list[Event] = [_extended(bounds, sweep_state)] if bounds else []
    if sweep_state.is_ask_tell:
        raise SweepError("trials that were asked for can't train on here: whoever asked for them keeps their states")
    if sweep_state.sweep.repeats.several:
        raise SweepError(
            "repeats can't train on, as their configurations would no longer be compared at one length. Train the best "
            f"ones from zero: hpsearch rerun {where} --iterations {until}"
        )
    rows = sweep_state.rows()
    open_trials = [row.number for row in rows if row.state not in TERMINAL]
    if open_trials and sweep_state.sweep.early_terminate is not None:
        raise SweepError(
            f"trials train on after all brackets have ended; still open: {trials_named(open_trials)}. First continue "
            f"with hpsearch resume {where}, or end them with hpsearch prune {where} {' '.join(map(str, open_trials))}"
        )
    ended = {row.number: sweep_state.record(row.number).valid_score for row in rows if row.state in DECIDED}
    chosen = requested or sweep_state.sweep.objective.front(ended)
    if not chosen:
        raise SweepError("no trial has ended with a value, so none is the best: name the trials that train on")
    if wrong := [trial for trial in chosen if trial not in ended]:
        raise SweepError(
            f"only a trial that has ended without failure can train on, got {trials_named(wrong)}; "
            + (
                f"there {'is' if len(ended) == 1 else 'are'} {trials_named(sorted(ended))}"
                if ended
                else "there is none"
            )
        )
    if done := [trial for trial in chosen if rows[trial].iterations >= until]:
        most = max(rows[trial].iterations for trial in done)
        raise SweepError(f"{trials_named(done)}: must train on beyond iteration {most}, got --max-iter {until}")
    notes = []
    for trial in chosen:
        record = sweep_state.record(trial)
        checkpoint = record.checkpoint
        if checkpoint is None or not has_checkpoint(checkpoint):
            notes.append(
                f"trial {trial} doesn't train on: its last checkpoint is gone, or it saved none. checkpoints.keep: all "
                "keeps those of all trials"
            )
            continue
        events.append(Continued(trial, until, record.checkpoint_iteration, checkpoint))
        same = [
            name
            for name, value in record.trial.params.items()
            if type(value) is int and value == sweep_state.sweep.iterations
        ]
        if same:
            notes.append(
                f"trial {trial}: {' and '.join(same)} is {sweep_state.sweep.iterations}, as max_iter: if its learning "
                "rate falls over so many iterations, the fall has ended, and it trains on at the last rate"
            )
    if not any(isinstance(event, Continued) for event in events):
        raise SweepError("; ".join(notes))
    if (met := sweep_state.stopping.met) is not None:
        key = "metric.target" if met == "target" else "limits.patience"
        notes.append(f"the sweep ended by {key}, and would end by it again: hpsearch resume {where} --set {key}=null")
    return events, notes


def _extended(details: Mapping[str, Any], sweep_state: SweepState) -> Extended:
    sweep = sweep_state.sweep
    early = sweep.early_terminate
    inside = () if early is None else early.raisable
    raisable = {"run_cap": "run_cap", **{name: f"early_terminate.{name}" for name in inside}}
    extended_sweep = sweep
    for name, value in details.items():
        if name not in raisable:
            raise SweepError(
                f"{_flag(name)} {value}: this study has begun, and can be extended by more of "
                f"{' or '.join(map(_flag, raisable))}, and by nothing else: its trials were judged by what they are. "
                "Run another sweep in a directory of its own"
            )
        extended_sweep = change_sweep(extended_sweep, [f"{raisable[name]}={value}"])
    more = extension(sweep, extended_sweep)
    if more is None:
        raise SweepError("the sweep has as much to do already: ask for more than that")
    try:
        sweep_state.rehearsal().extend(more.run_cap, more.settings)
    except ValueError as error:
        raise SweepError(f"a sweep can only be extended: {error}") from None
    return more


def _changed(details: Mapping[str, Any], sweep_state: SweepState) -> Changed:
    sweep, coming = sweep_state.sweep, len(sweep_state.records)
    space = Space.from_json(details["parameters"]) if "parameters" in details else sweep.parameters
    from_trial = coming if details.get("from_trial") is None else details["from_trial"]
    if from_trial < coming:
        raise SweepError(f"--from-trial {from_trial}: must be a trial that hasn't begun: {coming}, or a later one")
    if from_trial > coming and sweep_state.is_exhausted:
        raise SweepError(
            f"--from-trial {from_trial}: must be {coming}, as the space before has no more configurations to try"
        )
    return change(sweep, change_space(space, details.get("set", ())), from_trial, sweep_state.points_used)


def _added(points: Sequence[Mapping[str, Any]], sweep_state: SweepState, where: str) -> list[Added]:
    sweep, rows = sweep_state.sweep, sweep_state.rows()
    space = sweep.parameters
    reasons: dict[str | None, str] = {_key(point, space): "it waits already" for point in sweep_state.requested.points}
    reasons |= {space.key(row.params): f"trial {row.number} has it" for row in rows}
    added = []
    for index, values in enumerate(points):
        point = sweep.added_point(("params", index) if len(points) > 1 else ("params",), values, len(rows) + index)
        key = _key(point, space)
        if key is not None and (former := reasons.get(key)) is not None:
            shown = ",".join(f"{name}={value}" for name, value in point.items())
            raise SweepError(
                f"a point must be a new one, but {shown} is not: {former}. To run a configuration again with "
                f"another seed: hpsearch rerun {where}"
            )
        reasons[key] = "it is listed twice"
        added.append(Added(point))
    _check_room(len(added), sweep_state, where)
    return added


def _key(point: Params, space: Space) -> str | None:
    """Return a key of equal configurations; None for a partial one, whose missing values are sampled."""
    try:
        return space.key(space.check(point))
    except MissingParameter:
        return None


def _check_room(count: int, sweep_state: SweepState, where: str) -> None:
    """Check that so many configurations can be tried."""
    sweep, scheduler = sweep_state.sweep, sweep_state.rehearsal()
    early = sweep.early_terminate
    required = count + len(sweep_state.requested)
    new = (upcoming for upcoming in scheduler.upcoming() if isinstance(upcoming, NewTrial) and not upcoming.repeat)
    room = sum(1 for _ in islice(new, required))
    if room >= required or (early is not None and early.capabilities.forks and scheduler.busy):
        return
    total = scheduler.total()
    by = _room_by(sweep.run_cap if total is None else total[0], sweep, required - room)
    raising = "" if by is None else f"; make room with: hpsearch extend {where} {_flag(by[0])} {by[1]}"
    queued = f", which {len(sweep_state.requested)} asked for before will take" if len(sweep_state.requested) else ""
    raise SweepError(
        f"points that are added count as trials of the sweep, which creates {room or 'no'} more{queued}{raising}"
    )


def _pruned(trials: Sequence[int], requester: str, sweep_state: SweepState) -> list[Pruned]:
    rows = sweep_state.rows()
    strange = sorted({trial for trial in trials if not 0 <= trial < len(rows)})
    if strange:
        there = f"there are trials 0 to {len(rows) - 1}" if rows else "there is no trial yet"
        raise SweepError(f"only a trial that there is can be pruned, got {trials_named(strange)}; {there}")
    chosen, scheduler = sorted(set(trials)), sweep_state.rehearsal()
    for trial in chosen:
        record = sweep_state.record(trial)
        if record.state in TERMINAL:
            raise SweepError(f"trial {trial} is over already, it is {record.state}: {record.reason}")
        if record.pruned:
            raise SweepError(f"trial {trial} was {record.pruned} already, and ends at its next report")
        try:
            if record.continued is None:
                scheduler.prune(trial)
        except (LookupError, ValueError):
            running = "" if record.state is TrialState.RUNNING else "; it can be pruned while it runs"
            raise SweepError(f"trial {trial} waits, and this scheduler takes back none that does{running}") from None
    return [Pruned(trial, f"pruned by {requester}" if requester else "pruned") for trial in chosen]


def retries(sweep_state: SweepState, requested: Sequence[int], where: str | None = None) -> list[Retried]:
    """Return the events that retry failed trials.

    Args:
        sweep_state: The sweep's state, with its extensions.
        requested: Numbers of trials; empty: all failed ones that were not retried.
        where: The study's directory, quoted for a shell, if room is made by another command; None: by an option of
            `hpsearch retry`.

    Raises:
        SweepError: One of them hasn't failed, or there is no room for the new trials that they need.
    """
    failed = sweep_state.failed()
    if not failed:
        raise SweepError("no trial has failed that was not retried; there is nothing to retry")
    wrong = sorted(set(requested) - set(failed))
    if wrong:
        raise SweepError(
            f"only a trial that has failed and was not retried can be retried, got {trials_named(wrong)}; "
            f"there {'is' if len(failed) == 1 else 'are'} {trials_named(failed)}"
        )
    chosen = sorted(set(requested)) or failed
    anew = [trial for trial in chosen if not sweep_state.may_run_again(trial)]
    room = sweep_state.room()
    if room is not None and len(anew) > room:
        raise SweepError(
            f"the rungs of {trials_named(anew)} are decided, so that each would run as a new trial, and the sweep "
            f"creates only {room} more; {_extension(sweep_state, len(anew) - room, where)}name other trials"
        )
    return [Retried(trial) for trial in chosen]


def _room_by(total: int | None, sweep: Sweep, missing: int) -> tuple[str, int] | None:
    """Return the key of a sweep that makes room for more trials, and its value; None where none does.

    Args:
        total: Trials that the sweep creates now; None: unbounded or unknown.
        sweep: The current sweep.
        missing: Number of additional configurations.
    """
    early = sweep.early_terminate
    for name in early.raisable if early is not None else ():
        if (bound := getattr(early, name)) is not None:
            return f"early_terminate.{name}", bound + 1
    return None if total is None or sweep.repeats.racing else ("run_cap", total + missing * sweep.repeats.n)


def _extension(sweep_state: SweepState, missing: int, where: str | None) -> str:
    """Describe how to make room, if that is possible."""
    total = sweep_state.total()
    by = _room_by(None if total is None else total[0], sweep_state.sweep, missing)
    if by is None:
        return ""
    key, value = by
    if where is None:
        return f"add --set {key}={value}{' (or more)' if key != 'run_cap' else ''}, or "
    return f"make room with: hpsearch extend {where} {_flag(key)} {value}; or "


def _flag(key: str) -> str:
    """Return the word of `hpsearch extend` that raises a key."""
    return f"--{key.rpartition('.')[2].replace('_', '-')}"
