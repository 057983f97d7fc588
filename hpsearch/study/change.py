"""Change of the search space of a study that has begun.

A study's trials are divided by number: those before `from_trial` are from the space before, the others from the
changed one. Each space has a searcher of its own. A new searcher gets all events from the first on, with the params
of earlier trials as the new space has them, and without the trials that don't fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.events import Changed
from hpsearch.searchers import Observation, Past
from hpsearch.space import Constant, Derived, Space
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.sweep.parallel import SECTION
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Params, Trial

_PARALLEL = f"{SECTION}."


def change(sweep: Sweep, space: Space, from_trial: int, points_used: int) -> Changed:
    """Return the change of a study's sweep to another space.

    Args:
        sweep: The current sweep.
        space: The space from trial `from_trial` on.
        from_trial: Number of the first trial that is from the space.
        points_used: Number of `points_to_try` that trials have used.

    Raises:
        SweepError: The method can't change its space, or the new space isn't a change that earlier trials allow.
    """
    if sweep.repeats.several:
        raise SweepError(
            "a sweep with repeats can't change its space, as a configuration's repeats would be from two spaces. Run "
            "another sweep in a directory of its own; a method that learns begins with these trials by --from"
        )
    if sweep.forks or not sweep.searcher.capabilities.changes:
        why = "trials inherit from others" if sweep.forks else "its suggestions follow a plan over the whole space"
        raise SweepError(
            f"method {sweep.method} can't change its space, as {why}. Run another sweep in a directory of its own; a "
            "method that learns begins with these trials by --from"
        )
    if space.to_json() == sweep.parameters.to_json():
        raise SweepError("the study has this space already: what should change?")
    _check_kept(sweep.parameters, space)
    points = sweep.points_to_try[points_used:]
    try:
        replace(sweep, parameters=space, points_to_try=points)
    except InvalidKey as error:
        if error.key[:1] != ("points_to_try",):
            raise
        index = points_used + int(error.key[1])
        raise SweepError(
            f"points_to_try.{index} waits for a trial, and must be in the new space: {error.problem}. Change the space "
            "from a later trial on"
        ) from None
    return Changed(space.to_json(), from_trial)


def _check_kept(before: Space, after: Space) -> None:
    """Check that earlier trials can run on in the new space, and that their values of new parameters are known."""
    if before.calls or after.calls:
        raise SweepError("a space with a value derived by a function can't change: trials recorded what it returned")
    old, new = _plain(before.declared), _plain(after.declared)
    for name, item in old.items():
        other = new.get(name)
        if isinstance(item.holds, Structure) or isinstance(other and other.holds, Structure):
            if other is None or item.to_json() != other.to_json():
                raise SweepError(f"parameters.{name}: a choice, repeat, chain or cell can't change in a study")
        elif other is None:
            raise SweepError(
                f"parameters.{name}: must stay, as trials have it: {{value: ...}} says which value later trials have"
            )
        if name.startswith(_PARALLEL) and (other is None or item.to_json() != other.to_json()):
            raise SweepError(f"parameters.{name}: how workers train a trial can't change in a study")
    for name, item in new.items():
        if name in old:
            continue
        if isinstance(item.holds, Structure) or name.startswith(_PARALLEL):
            raise SweepError(f"parameters.{name}: only a number, a choice of values or a constant can be added")
        if not isinstance(item.holds, Derived) and item.holds.default is None:
            raise SweepError(
                f"parameters.{name}.default: is required where a parameter is added: the value that earlier trials had"
            )


def _plain(declared: Sequence[Declared], path: tuple[str, ...] = ()) -> Mapping[str, Declared]:
    """Return the parameters and structures by flat name; those of groups in place of the groups."""
    out: dict[str, Declared] = {}
    for item in declared:
        here = (*path, *item.path)
        if isinstance(item.holds, ParameterGroup):
            out |= _plain(item.holds.declared, here)
        else:
            out[".".join(here)] = replace(item, path=here)
    return out


def changed(sweep: Sweep, event: Changed) -> Sweep:
    """Return the sweep with a change applied."""
    return replace(sweep, parameters=Space.from_json(event.parameters), read_back=True)


def searched(sweep: Sweep, space: Space) -> Sweep:
    """Return the sweep as the searcher of a changed space gets it: used points to try may be outside of the space."""

    def inside(point: Params) -> Params:
        try:
            return space.check(point, partial=True)
        except InvalidKey:
            return {}

    points = tuple(map(inside, sweep.points_to_try))
    return replace(sweep, parameters=space, points_to_try=points, read_back=True)


def spaces_of(stored: Sweep, changes: Sequence[Changed]) -> list[Space]:
    """Return the spaces of a study in order: of its first sweep, and of each change."""
    return [stored.parameters, *(Space.from_json(event.parameters) for event in changes)]


def fitted(params: Params, space: Space, earlier: Sequence[Space] = ()) -> Params | None:
    """Return params as a space has them: with defaults, and without other parameters; None if they don't fit.

    A parameter that was searched and is now a constant has this value: the searcher no longer sees the others.

    Args:
        params: Params of any space of the study.
        space: The space.
        earlier: The spaces before it.
    """
    settled = {
        name: known.distribution.value
        for name in params
        if (known := space.find(name)) is not None
        and isinstance(known.distribution, Constant)
        and any((former := one.find(name)) is not None and former.distribution.searched for one in earlier)
    }
    own = {name: value for name, value in {**params, **settled}.items() if space.find(name) is not None}
    try:
        for name in space.with_defaults(own).keys() - own.keys():
            # The change that added a parameter says what earlier trials had. A later one may have another default.
            added = next((known for one in earlier if (known := one.find(name)) is not None), None)
            if added is not None and added.distribution.default is not None:
                own[name] = added.distribution.default
        return space.fitted(own)
    except InvalidKey:
        return None


def fitted_past(past: Sequence[Past], space: Space, earlier: Sequence[Space]) -> list[Past]:
    """Return the trials of other searches that fit a space, with their params as the space has them."""
    known = ((trial, fitted(trial.params, space, earlier)) for trial in past)
    return [replace(trial, params=params) for trial, params in known if params is not None]


Translate = Callable[[Trial | Observation], Trial | Observation | None]
"""Converts trials, and observations of them, to a searcher's space; None for those that don't fit."""


def translator(space: Space, earlier: Sequence[Space]) -> Translate:
    """Return a function that converts a study's trials to a space; see `fitted`."""
    known: dict[int, Trial | None] = {}

    def translate(subject: Trial | Observation) -> Trial | Observation | None:
        trial = subject.trial if isinstance(subject, Observation) else subject
        if trial.number not in known:
            params = fitted(trial.params, space, earlier)
            known[trial.number] = None if params is None else replace(trial, params=params)
        translated = known[trial.number]
        if translated is None or isinstance(subject, Trial):
            return translated
        return replace(subject, trial=translated)

    return translate
