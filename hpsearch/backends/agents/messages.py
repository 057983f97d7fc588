"""The documents of drivers and agents, and their strict conversion to JSON and back. Nothing is unpickled."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, TypeVar

from hpsearch.backends.gangs import Loss
from hpsearch.config.strict_json import parse_json
from hpsearch.events import Saved
from hpsearch.task import Result, Task
from hpsearch.trial import Report

FORMAT = 1
"""Version of the documents."""

VERSION = version("hpsearch")
"""Drivers and agents must have the same."""

Key = tuple[int, int]
"""(trial, attempt), which identify a task."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a driver tells all agents once: what its tasks run."""

    format: int
    version: str
    """Version of hpsearch."""
    driver: str
    """Identifies one run of the driver."""
    directory: str
    """Path of the study's directory on the driver's machine, for messages."""
    sweep: Mapping[str, Any]
    """The sweep as the study stores it, without what only the driver uses."""
    resource: str | None
    """As in `Job`."""
    live: bool
    """As in `Job`."""
    mkl_cbwr: str | None
    """As in `Job`."""
    search_path: tuple[str, ...]
    """Folders in which the trainable's module is searched for, relative to the agent's folder of code."""
    files: tuple[tuple[str, str], ...]
    """Name and digest of each of the trainable's own files."""
    lease: float
    """Seconds without a new document of an agent after which its task is lost."""
    stop: str = ""
    """Why this driver has ended; empty: it hasn't."""


@dataclass(frozen=True, slots=True)
class AttemptState:
    """An attempt of an agent, with all that the driver hasn't acknowledged."""

    trial: int
    attempt: int
    reports: tuple[Report, ...]
    saves: tuple[Saved, ...]
    result: Result | None
    """How it ended; None while it runs, or if it was lost."""
    loss: Loss | None
    """How it was lost."""
    notes: Mapping[str, str]
    """All notes of the attempt, by name."""

    @property
    def key(self) -> Key:
        """Identifies the task."""
        return self.trial, self.attempt


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent's document."""

    agent: str
    counter: int
    """Each document of an agent has a larger one. It is the heartbeat, too."""
    host: str
    driver: str
    """The driver that it last received orders from; empty: none."""
    ready: bool
    """Whether it could begin another task now."""
    leaving: bool
    """Whether it takes no more tasks, and ends once all that it has is acknowledged."""
    refusal: str
    """Why it runs nothing, such as that its code differs; empty: it does."""
    mistake: str
    """Why its worker can't run the trainable; empty: it can."""
    attempt: AttemptState | None


@dataclass(frozen=True, slots=True)
class Orders:
    """The driver's document for one agent."""

    driver: str
    counter: int
    """Each document of a driver for an agent has a larger one."""
    agent: str
    heard: int
    """Counter of the agent's last document."""
    task: Task | None
    """The task that the agent is to run. Another attempt of the agent ends: it is acknowledged, or another agent's."""
    cut: bool
    """The task should end at its next report, with a checkpoint."""
    decided: int
    """Iteration up to which the reports are acknowledged and the scheduler has decided."""
    counted: int
    """Iteration of the last checkpoint that is acknowledged."""
    stop: str
    """Why the agent should end; empty: it shouldn't."""


Document = TypeVar("Document", Announcement, AgentState, Orders)


def encode(document: Announcement | AgentState | Orders) -> bytes:
    """Return a document as JSON."""
    return json.dumps(asdict(document), separators=(",", ":")).encode()


def decode(kind: type[Document], content: bytes) -> Document:
    """Read a document strictly: with exactly its keys, and values of their types.

    Raises:
        ValueError: It isn't one.
    """
    try:
        document: Document = _read(kind, parse_json(content), kind.__name__)
    except UnicodeDecodeError as error:
        raise ValueError(f"{kind.__name__}: must be JSON in UTF-8, got: {error}") from None
    return document


def _read(hint: Any, value: Any, where: str) -> Any:
    """Return a value of JSON as a type's."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = _hints(hint)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ValueError(f"{where}: must have the keys {', '.join(hints)}, got {_shown(value)}")
        try:
            return hint(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()})
        except AssertionError as error:  # of a task that no scheduler gives
            raise ValueError(f"{where}: {error}") from None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        (kind,) = [argument for argument in arguments if argument is not types.NoneType]
        return None if value is None else _read(kind, value, where)
    if origin is Literal and value in arguments and isinstance(value, str):
        return value
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple([_read(kind, item, f"{where}[{index}]") for index, (kind, item) in pairs])
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {name: _read(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if hint is float and type(value) in (int, float):
        return value
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"{where}: must be {getattr(hint, '__name__', hint)}, got {_shown(value)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _shown(value: Any) -> str:
    return f"{value!r:.80}"
