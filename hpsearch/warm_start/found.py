"""Trials of other searches, and the selection of those that a sweep's searcher can use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.config.checks import InvalidKey, key_text
from hpsearch.searchers import Past
from hpsearch.space import Broken, Categorical, Derived, MissingParameter, Parameter, Space
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Params, Score, Value
from hpsearch.warm_start.cells import same_value


@dataclass(frozen=True)
class LeftOut:
    """Why a trial can't be used."""

    reason: str
    """Text that follows the number of such trials, such as `have no lr`."""
    example: str = ""
    """Error of the first such trial."""


@dataclass(frozen=True)
class SourceTrial:
    """A trial of another search, as its source contains it."""

    params: Mapping[str, object]
    """Params by flat name."""
    values: Mapping[int | None, Score]
    """Score by iteration. The key None means the trial's end, at an unknown iteration."""
    reached: int | None = None
    """Number of trained iterations; None if the trial ran to its own end, or if unknown."""
    is_complete: bool = True
    """Whether the trial wasn't ended early."""
    left_out: LeftOut | None = None
    """Why the trial can't be used; None if it can."""


@dataclass(frozen=True)
class FittedTrial:
    """A trial of another search as this sweep's searcher gets it."""

    past: Past
    defaulted: Sequence[str]
    """Parameters that the trial lacked, and whose `default` it got."""
    dropped: Sequence[str]
    """Parameters that the trial had, and the sweep doesn't have."""


@dataclass(frozen=True)
class Source:
    """The trials of one source."""

    shown: str
    """Name of the source for messages."""
    trials: Sequence[SourceTrial]
    notes: Sequence[str] = field(default_factory=tuple)
    """Further notes on how the trials were read."""


def select_trials(source: Source, sweep: Sweep) -> tuple[list[Past], str]:
    """Return the trials of a source that a sweep's searcher can use, and notes on their number and on other trials.

    A trial must have a valid value for each parameter of the sweep's space, including constants; a missing one is the
    parameter's `default`. Other parameters are dropped. Its scores count at the iterations at which they were measured,
    up to the sweep's last iteration.
    """
    usable: list[Past] = []
    reasons, examples = Counter[str](), dict[str, str]()
    changes = Counter[str]()
    for trial in source.trials:
        answer = _past(trial, sweep)
        if isinstance(answer, FittedTrial):
            usable.append(answer.past)
            changes.update(f"with the default of {name}" for name in answer.defaulted)
            changes.update(f"without {name}, which isn't a parameter here" for name in answer.dropped)
        else:
            reasons[answer.reason] += 1
            examples.setdefault(answer.reason, answer.example)
    notes = [f"{len(usable)} of {len(source.trials)} taken"]
    notes += [f"{count} of these {change}" for change, count in changes.items()]
    for reason, count in reasons.most_common():
        text = f"has{reason.removeprefix('have')}" if count == 1 and reason.startswith("have") else reason
        notes.append(f"{count} {text}" + (f": it {examples[reason]}" if examples[reason] else ""))
    return usable, "; ".join([*notes, *source.notes])


def _past(trial: SourceTrial, sweep: Sweep) -> FittedTrial | LeftOut:
    if trial.left_out is not None:
        return trial.left_out
    space = sweep.parameters
    known = {name: value for name, value in trial.params.items() if space.find(name) is not None}
    params = _params(known, space)
    if isinstance(params, LeftOut):
        return params
    if not trial.values:
        return LeftOut("have no value")
    longest = sweep.iterations
    if longest is None:
        until = None if trial.is_complete else trial.reached
        scores = trial.values
    else:
        until = longest if trial.reached is None else min(trial.reached, longest)
        scores = {at: value for at, value in trial.values.items() if at is None or at <= longest}
        if not scores:
            return LeftOut(f"have values only from after iteration {longest}, the last one here")
    ends = [at for at in scores if at is not None]
    end = until or max(ends, default=1)
    past = Past(params, dict(sorted((end if at is None else at, value) for at, value in scores.items())), until)
    defaulted = [name for name in params if name not in known and _default(name, space) is not None]
    return FittedTrial(past, defaulted, [name for name in trial.params if name not in known])


def _params(known: Mapping[str, object], space: Space) -> Params | LeftOut:
    try:
        params = space.fitted(known)
    except MissingParameter as error:
        return LeftOut(f"have no {'.'.join(map(str, error.key))}")
    except Broken as error:
        return LeftOut("break a constraint", error.problem)
    except InvalidKey as error:
        return LeftOut(f"have another {key_text(error.key)}", error.problem)
    parameters = [parameter for name in params if (parameter := space.find(name)) is not None]
    missing = next((item.name for item in parameters if item.name not in known and not _follows(item)), None)
    if missing is not None:
        return LeftOut(f"have no {missing}")
    never = next((item.name for item in parameters if not _is_drawn(item, params[item.name])), None)
    return params if never is None else LeftOut(f"have a {never} whose probability is 0 here")


def _default(name: str, space: Space) -> Value:
    """Return a parameter's default; None if it has none."""
    parameter = space.find(name)
    return None if parameter is None else parameter.distribution.default


def _follows(parameter: Parameter) -> bool:
    """Return whether a parameter's value may be missing: it is derived, a fixed number of copies, or has a default."""
    return (
        isinstance(parameter.distribution, Derived)
        or parameter.holder is not None
        or parameter.distribution.default is not None
    )


def _is_drawn(parameter: Parameter, value: Value) -> bool:
    """Return whether a value can be sampled. Choices with probability 0 can't, and models don't include them."""
    choices = parameter.distribution
    return not isinstance(choices, Categorical) or any(same_value(value, choice) for choice in choices.every_value())
