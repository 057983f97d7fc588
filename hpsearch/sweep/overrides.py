"""Changes by `--set KEY=VALUE`: of a sweep file before it runs, of a study's sweep when it is resumed, of its space.

The type of a parameter follows from how its numbers are written in the file, and an override does not change it: an
integer that replaces a float becomes a float, and a range of integers only accepts integers.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hpsearch.config.checks import InvalidKey, InvalidKeys, KeyPath, key_text, shown, under
from hpsearch.config.settings import NONE, settings_fields
from hpsearch.errors import SweepError
from hpsearch.space import Space
from hpsearch.space.parameter import Declared, ParameterGroup, Structure
from hpsearch.sweep.distributions import RANGE_BOUNDS, is_whole_range, written_distribution
from hpsearch.sweep.document import Document, parse_value
from hpsearch.sweep.parameters import read_constraints, read_declared, space_of_declared
from hpsearch.sweep.parts import SECTIONS
from hpsearch.sweep.reader import observer_names
from hpsearch.sweep.sweep import Sweep

_INSIDE = {"parameters": "name", "choice": "branch", "repeat": "key", "chain": "branch", "cell": "branch"}
"""Keys of a parameter that contain other parameters, and the keys inside: names of parameters, names of branches, or
the keys of a parameter."""

_OPTIONS = ("min", "max", "length", "nodes", "each", "inputs", "when")
"""Other keys of a structure."""


@dataclass(frozen=True)
class Override:
    """An option `--set`."""

    text: str
    """`KEY=VALUE`."""
    path: KeyPath


def apply_overrides(document: Document, overrides: Sequence[str]) -> list[Override]:
    """Change the value of a document in place.

    Raises:
        SweepError: An override is not `KEY=VALUE`, or a part of its key is not a mapping or list.
    """
    out = []
    ranges: dict[KeyPath, str] = {}
    for override in overrides:
        prefix = f"{document.name}: --set {override}"
        key, equals, value = override.partition("=")
        if not equals or not all(key.split(".")):
            raise SweepError(f"{prefix}: must be KEY=VALUE, such as early_terminate.max_iter=81")
        path = dotted_path(document.value, key)
        is_integer = _is_whole_range(document.value, path)
        _put(document, path, parse_value(value, prefix), prefix)
        if is_integer:
            ranges[path[:-1]] = prefix
        for inside in [known for known in document.lines if known[: len(path)] == path]:
            del document.lines[inside]
        out.append(Override(override, path))
    for path, prefix in ranges.items():
        _check_still_whole(document.value, path, prefix)
    return out


def dotted_path(value: object, key: str | KeyPath) -> KeyPath:
    """Return the full path of a key in the value of a sweep file.

    Names of parameters may contain dots. The keys `parameters` of groups, and the keys of structures, may be omitted:
    `parameters.optimizer.lr.max` finds `parameters -> optimizer -> parameters -> lr -> max`.
    """
    remaining = list(key) if not isinstance(key, str) else _parts(key)
    out: list[str | int] = []
    while remaining:
        value, used = _follow(value, remaining, out)
        remaining = remaining[used:]
    return tuple(out)


def _parts(key: str) -> list[str | int]:
    return [int(part) if part.isdecimal() and len(part) < 10 else part for part in key.split(".")]


def _follow(value: object, remaining: list[str | int], out: list[str | int]) -> tuple[object, int]:
    """Follow the next part of a key: append to `out`, and return the value and the number of parts used."""
    first = remaining[0]
    if isinstance(value, list) and isinstance(first, int):
        out.append(first)
        return (value[first] if first < len(value) else None), 1
    if isinstance(value, Mapping):
        for used in range(len(remaining), 0, -1):  # the longest name wins: model.lr before model
            name = ".".join(map(str, remaining[:used]))
            if name in value:
                out.append(name)
                return value[name], used
        holder = next((key for key in _INSIDE if isinstance(value.get(key), Mapping)), None)
        inside = holder == "parameters" or first not in _OPTIONS
        if holder is not None and inside and len(out) > 1 and out[0] == "parameters":
            out.append(holder)
            # Numbers of copies and edges are skipped, since a file describes them once.
            return value[holder], int(str(first)[:1].isdecimal())
    out.append(first if isinstance(value, list) else str(first))
    return None, 1


def _put(document: Document, path: KeyPath, value: object, prefix: str) -> None:
    container: Any = document.value
    for depth, part in enumerate(path):
        if isinstance(container, dict):
            former = container.get(part)
        elif isinstance(container, list) and isinstance(part, int) and part < len(container):
            former = container[part]
        else:
            raise SweepError(f"{prefix}: {key_text(path[:depth]) or 'the file'} {_no_keys(container)}")
        if depth == len(path) - 1:
            container[part] = _as_written(former, value, path)
        elif former is None and isinstance(container, dict):
            container[part] = {}
        container = container[part]


def _as_written(former: object, value: object, path: KeyPath) -> object:
    """Return the new value; an integer that replaces a float of a parameter becomes a float."""
    if path[0] == "parameters" and isinstance(former, float) and type(value) is int:
        with suppress(OverflowError):  # the reader of the value refuses an integer that is too large
            return float(value)
    return value


def _is_whole_range(value: object, path: KeyPath) -> bool:
    """Return whether a key is a bound of a range of integers without a `distribution`."""
    *parameter, key = path
    # A mapping that is the value of a parameter may also have a min and a max.
    if key not in RANGE_BOUNDS or not _is_parameter(parameter):
        return False
    config = _inferred_range(value, parameter)
    return {"min", "max"} <= set(config) and is_whole_range(config)


def _is_parameter(path: Sequence[str | int]) -> bool:
    """Return whether a path leads to a parameter."""
    if not path or path[0] != "parameters":
        return False
    expected = "name"
    for part in path[1:]:
        if expected == "key" and part not in _INSIDE:
            return False
        expected = _INSIDE[str(part)] if expected == "key" else "name" if expected == "branch" else "key"
    return expected == "key"


def _check_still_whole(value: object, path: KeyPath, prefix: str) -> None:
    config = _inferred_range(value, path)
    for key in RANGE_BOUNDS:
        if isinstance(config.get(key), float):
            where = key_text((*path, key))
            raise SweepError(
                f"{prefix}: {where}: must be an integer, as the file has a range of integers here, got {config[key]}\n"
                f"  for a range of floats add --set {shlex.quote(key_text((*path, 'distribution')))}=uniform"
            )


def _inferred_range(value: object, path: Sequence[str | int]) -> Mapping[str, Any]:
    """Return the parameter at a path if it has no `distribution`; otherwise an empty mapping."""
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) and value.get("distribution") is None else {}


def _no_keys(value: object) -> str:
    if isinstance(value, list):
        return f"must be followed by a position below {len(value)}"
    return f"must be a mapping, got {shown(value)}"


def change_space(space: Space, overrides: Sequence[str]) -> Space:
    """Return a study's space with changed, replaced or added parameters.

    Args:
        space: The space.
        overrides: `parameters.NAME.KEY=VALUE`, `parameters.NAME={...}` with a whole parameter, or `constraints=[...]`,
            with the value in YAML, as in a sweep file.

    Raises:
        SweepError: The key is another one, which a change of the space can't set, or the value is invalid.
    """
    declared, constraints = space.declared, space.constraints
    for override in overrides:
        key, equals, text = override.partition("=")
        section, _, name = key.partition(".")
        if not equals or not (key == "constraints" or (section == "parameters" and name)):
            raise SweepError(
                f"--set {override}: must be parameters.NAME=..., parameters.NAME.KEY=... or constraints=..., as only "
                "the space changes. Bounds are raised by hpsearch extend; limits, targets and resources are set by "
                "hpsearch resume --set"
            )
        value = parse_value(text, f"--set {override}")
        try:
            if section == "constraints":
                constraints = read_constraints(value, ("constraints",))
            else:
                declared = _with_parameter(declared, name, value, ("parameters",))
        except (InvalidKey, InvalidKeys) as error:
            raise SweepError(f"--set {override}: {error}") from None
    return space_of_declared(declared, constraints, ("parameters",))


def _with_parameter(declared: Sequence[Declared], name: str, value: object, path: KeyPath) -> tuple[Declared, ...]:
    """Return declarations in which a parameter, or one key of it, has another value.

    Args:
        declared: The parameters of a group.
        name: A parameter's flat name in the group; for one key of it, followed by a dot and the key.
        value: The value in a sweep file.
        path: The key of the group.
    """
    by_name = {".".join(item.path): index for index, item in enumerate(declared)}
    known = [known for known in by_name if name == known or name.startswith(f"{known}.")]
    if not known:
        groups = {item.path[:depth] for item in declared for depth in range(1, len(item.path))}
        group = max((one for one in groups if name.startswith(".".join(one) + ".")), key=len, default=())
        inside = name[len(".".join(group)) + 1 :] if group else name
        return (*declared, *read_declared((*group, inside), value, path))
    owner = max(known, key=len)
    index, key = by_name[owner], name[len(owner) + 1 :]
    item = declared[index]
    here = (*path, *item.path)
    if isinstance(item.holds, ParameterGroup) and key:
        item = replace(item, holds=ParameterGroup(_with_parameter(item.holds.declared, key, value, here)))
        return (*declared[:index], item, *declared[index + 1 :])
    if isinstance(item.holds, Structure):
        raise InvalidKey(here, "can't change in a study that has begun: it isn't a parameter with a single value")
    if key:
        config = written_distribution(item.holds) | ({} if item.when is None else {"when": item.when.text})
        config[key] = _as_written(config.get(key), value, here)
        value = config
    return (*declared[:index], *read_declared(item.path, value, path), *declared[index + 1 :])


def change_sweep(sweep: Sweep, overrides: Sequence[str]) -> Sweep:
    """Return a study's sweep with changed bounds, limits, targets or observers.

    Args:
        sweep: The sweep of the study.
        overrides: `KEY=VALUE`, the value in YAML.

    Raises:
        SweepError: The key cannot be changed after the start of a study, or the value is invalid.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        changeable = _changeable(sweep)
        if not equals or key not in changeable:
            raise SweepError(
                f"--set {override}: this study has begun and takes {', '.join(changeable)} as KEY=VALUE, and no other "
                "key; run another sweep in a directory of its own"
            )
        try:
            sweep = _changed(sweep, key, parse_value(text, f"--set {override}"))
        except InvalidKey as error:
            raise SweepError(f"--set {override}: {error}") from None
    return sweep


def _changeable(sweep: Sweep) -> list[str]:
    """Return the keys of a sweep that can be changed: its bounds, and how it runs."""
    early = sweep.early_terminate
    keys = ["run_cap", *(f"early_terminate.{key}" for key in (() if early is None else early.raisable))]
    several = len(sweep.objective.goals) > 1
    metrics = [f"metric.{index}" for index in range(len(sweep.objective.goals))] if several else ["metric"]
    for name in ("limits", "resources", *metrics):
        keys += [
            f"{name}.{key}"
            for key, field in settings_fields(SECTIONS[name.partition(".")[0]]).items()
            if field.how and (several or key != "reference")
        ]
    if sweep.strategies.fixed:  # their results depend on the number of workers
        keys.remove("resources.workers_per_trial")
    return [*keys, "observers", "on_end"]


def _changed(sweep: Sweep, key: str, value: Any) -> Sweep:
    path, _, name = key.rpartition(".")
    if not path:
        value = observer_names(value, (name,)) if name == "observers" else None if value == NONE else value
        return replace(sweep, **{name: value})
    section, _, index = path.partition(".")
    value_of_section = getattr(sweep, section)
    settings = value_of_section[int(index)] if index else value_of_section
    with under((section, int(index)) if index else (section,)):
        read = settings_fields(type(settings))[name].read(value, (name,))
        changed = replace(settings, **{name: read})
    if index:
        changed = tuple(changed if item is settings else item for item in value_of_section)
    return replace(sweep, **{section: changed})
