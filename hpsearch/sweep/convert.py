"""Conversion of a W&B sweep file that hpsearch can't run unchanged.

Only the parts that must change are edited, each with a comment. Other comments, the order and quotes are kept.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from hpsearch.errors import SweepError
from hpsearch.sweep.file import TOP_KEYS, WRAPPER
from hpsearch.sweep.wandb import HINTS
from hpsearch.trainable.macros import MACROS

_GOALS = {"max": "maximize", "maximum": "maximize", "maximise": "maximize"}
_GOALS |= {"min": "minimize", "minimum": "minimize", "minimise": "minimize"}
_GOALS |= {goal: goal for goal in ("maximize", "minimize")}

_KEYS = ("run_cap", "early_terminate")

_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_]*\.?[0-9_]*(?:[eE][-+]?[0-9]+)?")
"""A number of YAML 1.1 with underscores."""

_FLOAT_OF_INTEGER = re.compile(r"[-+]?[0-9]+\.0*")
_WHOLE = ("min", "max")

_CONTINUOUS = (None, "uniform", "log_uniform", "log_uniform_values", "inv_log_uniform", "inv_log_uniform_values")

_ALIKE = 0.75
"""Minimum similarity of an unknown key to a known one to count as misspelt."""

_POINTS = 10
"""Default number of grid points of a range."""


@dataclass(frozen=True)
class Change:
    """An edit of the text."""

    start: int
    end: int
    text: str
    line: int
    """Line number, from 1."""
    why: str


def converted(text: str, name: str) -> tuple[str, list[Change]]:
    """Return the text of a file that runs, and the changes in the order of lines.

    Args:
        text: Text of a W&B sweep file.
        name: Name of the file, for errors.

    Raises:
        SweepError: The text is not YAML.
    """
    try:
        top = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise SweepError(f"{name}: must be valid YAML: {' '.join(str(error).split())}") from None
    changes = sorted(_changes(top, text), key=lambda change: change.start)
    for change in reversed(changes):
        text = text[: change.start] + change.text + text[change.end :]
    return _commented(text, changes), changes


def origins(text: str, changes: Sequence[Change]) -> list[int]:
    """Return the line number in the original file for each line of the converted text.

    Args:
        text: Text of the original file.
        changes: Its changes.
    """
    numbers: list[int] = []
    for line in range(1, text.count("\n") + 2):
        here = [change for change in changes if change.line == line]
        added = len(here) + sum(change.text.count("\n") for change in here)
        numbers += [line] * (added + 1)
    return numbers


def _commented(text: str, changes: list[Change]) -> str:
    """Return the text with a comment above each changed line."""
    lines = text.split("\n")
    for count, change in reversed(list(enumerate(changes))):
        index = change.line - 1 + sum(before.text.count("\n") for before in changes[:count])
        line = lines[index]
        indent = line[: len(line) - len(line.lstrip())]
        lines.insert(index, f"{indent}# hpsearch convert: {change.why}")
    return "\n".join(lines)


def _changes(top: yaml.Node | None, text: str) -> Iterator[Change]:
    if not isinstance(top, yaml.MappingNode):
        return
    inside = [(key, value) for key, value in top.value if not str(key.value).startswith("x-")]
    if len(inside) == 1 and inside[0][0].value == WRAPPER and isinstance(inside[0][1], yaml.MappingNode):
        yield from _changes(inside[0][1], text)
        return
    sections = {key.value: value for key, value in top.value}
    yield from _repeated(top, text)
    if "parameters" in sections:  # otherwise the sweep itself may be below one of the keys
        yield from _unknown(top, text)
    yield from _numbers(top)
    metric, parameters, command = (sections.get(key) for key in ("metric", "parameters", "command"))
    if isinstance(metric, yaml.MappingNode):
        goal = next((value for key, value in metric.value if key.value == "goal"), None)
        meant = _GOALS.get(goal.value.lower()) if isinstance(goal, yaml.ScalarNode) else None
        if isinstance(goal, yaml.ScalarNode) and meant not in (None, goal.value):
            yield _written(goal, meant, f"goal was {goal.value}")
    if isinstance(parameters, yaml.MappingNode):
        method = sections.get("method")
        yield from _parameters(parameters, isinstance(method, yaml.ScalarNode) and method.value == "grid", text)
    if isinstance(command, yaml.SequenceNode):
        yield from _macros(command)
    elif isinstance(command, yaml.ScalarNode) and _is_written(command) and command.style is None:
        yield _written(command, json.dumps(_argv(command.value)), "command was one text")
    for key, _ in top.value:
        meant = key.value.replace("-", "_")
        if meant != key.value and meant in _KEYS and meant not in sections:
            yield _written(key, meant, f"{key.value} is no key")


def _parameters(group: yaml.MappingNode, grid: bool, text: str) -> Iterator[Change]:
    for key, value in group.value:
        if isinstance(value, yaml.ScalarNode) and _is_written(value):
            yield _written(value, f"{{value: {_source(value, text)}}}", f"{key.value} was a plain value")
        elif isinstance(value, yaml.SequenceNode) and _on_one_line(value) and value.flow_style:
            yield _written(value, f"{{values: {_source(value, text)}}}", f"{key.value} was a plain list")
        elif isinstance(value, yaml.MappingNode):
            inside = {inner.value: node for inner, node in value.value}
            if isinstance(inside.get("parameters"), yaml.MappingNode):
                yield from _parameters(inside["parameters"], grid, text)
            else:
                yield from _parameter(key.value, value, inside, grid, text)


def _parameter(
    name: str, node: yaml.MappingNode, inside: dict[str, yaml.Node], grid: bool, text: str
) -> Iterator[Change]:
    values, named = inside.get("values"), inside.get("distribution")
    if isinstance(values, yaml.ScalarNode) and _is_written(values):
        yield _written(values, f"[{_source(values, text)}]", "values was no list")
    listed = "categorical" if "values" in inside else "constant" if "value" in inside else None
    named_value = named.value if isinstance(named, yaml.ScalarNode) else None
    if listed is not None and isinstance(named, yaml.ScalarNode) and not named.value.startswith(listed):
        yield _written(named, listed, f"distribution was {named.value}, beside what is listed")
    for bound in (inside.get(key) for key in _WHOLE if named_value == "int_uniform"):
        if isinstance(bound, yaml.ScalarNode) and bound.style is None and _FLOAT_OF_INTEGER.fullmatch(bound.value):
            yield _written(bound, bound.value.partition(".")[0], f"{bound.value} is a float, of an integer parameter")
    last = node.value[-1][1] if node.value else None
    ranged = "min" in inside and "max" in inside and named_value in _CONTINUOUS and not inside.keys() & {"q", "points"}
    if grid and ranged and isinstance(last, yaml.ScalarNode) and not _is_whole(inside):
        gap = ", " if node.flow_style else f"\n{' ' * node.value[0][0].start_mark.column}"
        yield Change(
            last.end_mark.index,
            last.end_mark.index,
            f"{gap}points: {_POINTS}",
            last.start_mark.line + 1,
            f"a grid over {name} needs to know how many points it has",
        )


def _is_whole(inside: dict[str, yaml.Node]) -> bool:
    integer_tag = "tag:yaml.org,2002:int"
    return inside["min"].tag == integer_tag and inside["max"].tag == integer_tag and "distribution" not in inside


def _argv(line: str) -> list[str]:
    """Split a command like a shell; at spaces if a quote is not closed."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _macros(command: yaml.SequenceNode) -> Iterator[Change]:
    for word in command.value:
        macro = re.fullmatch(r"\$\{(\w+)\}", word.value) if isinstance(word, yaml.ScalarNode) else None
        if macro is None or macro[1] in MACROS:
            continue
        close = difflib.get_close_matches(macro[1], MACROS, n=1)
        if close:
            # Quotes are needed within braces or brackets.
            yield _written(word, json.dumps(f"${{{close[0]}}}"), f"{word.value} is no macro")


def _numbers(node: yaml.Node) -> Iterator[Change]:
    """Yield changes of YAML 1.1 numbers to a notation that is valid in all versions."""
    if isinstance(node, yaml.ScalarNode):
        numeric = node.style is None and node.tag.endswith((":int", ":float"))
        if numeric and "_" in node.value and _UNDERSCORED.fullmatch(node.value):
            yield _written(node, node.value.replace("_", ""), f"{node.value} is no number in YAML 1.2")
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _numbers(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _numbers(value)


def _unknown(top: yaml.MappingNode, text: str) -> Iterator[Change]:
    """Yield changes that comment out unknown keys, which W&B ignores, unless they are misspelt known keys."""
    if top.flow_style:
        return
    for index, (key, value) in enumerate(top.value):
        name = key.value
        if not isinstance(name, str) or name in TOP_KEYS or name in HINTS[""] or name.startswith("x-"):
            continue
        if name.replace("-", "_") in TOP_KEYS or difflib.get_close_matches(name.lower(), TOP_KEYS, n=1, cutoff=_ALIKE):
            continue  # a mistake, which is reported as an error
        following = top.value[index + 1 :]
        last = following[0][0].start_mark.line if following else value.end_mark.line + (value.end_mark.column > 0)
        yield from _comments(text, key.start_mark.line, last, f"{name} isn't a key of a sweep", f"(of {name})")


def _repeated(node: yaml.Node, text: str) -> Iterator[Change]:
    """Yield changes that comment out keys that are repeated below, since W&B uses the last one."""
    if not isinstance(node, yaml.MappingNode):
        return
    last = {key.value: index for index, (key, _) in enumerate(node.value) if isinstance(key, yaml.ScalarNode)}
    for index, (key, value) in enumerate(node.value):
        again = last.get(key.value, index)
        if again == index:
            yield from _repeated(value, text)
        elif not node.flow_style:
            below = node.value[again][0].start_mark.line + 1
            end = node.value[index + 1][0].start_mark.line
            why = f"{key.value} is repeated below, and the last one counts"
            yield from _comments(text, key.start_mark.line, end, why, f"(line {below})")


def _comments(text: str, first: int, end: int, why: str, why_more: str) -> Iterator[Change]:
    """Yield changes that comment out the lines from `first` to before `end`, counted from 0, except for empty ones."""
    lines = text.split("\n")
    for line, content in enumerate(lines[first:end], first):
        if content.strip():
            start = sum(len(before) + 1 for before in lines[:line])
            yield Change(start, start, "# ", line + 1, why if line == first else why_more)


def _written(node: yaml.Node, text: str, why: str) -> Change:
    return Change(node.start_mark.index, node.end_mark.index, text, node.start_mark.line + 1, why)


def _source(node: yaml.Node, text: str) -> str:
    return text[node.start_mark.index : node.end_mark.index]


def _is_written(node: yaml.ScalarNode) -> bool:
    """Return whether a scalar is on one line and not empty: `command:` alone is null."""
    return bool(node.value) and _on_one_line(node)


def _on_one_line(node: yaml.Node) -> bool:
    return bool(node.start_mark.line == node.end_mark.line)
