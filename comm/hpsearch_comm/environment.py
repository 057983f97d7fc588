"""A group from environment variables, as `torchrun` and other launchers set them.

    RANK, WORLD_SIZE                number of this process; number of processes. Without them, a group of one
    MASTER_ADDR, MASTER_PORT        host of rank 0, and a free port on it, or the port of torchrun's store
    LOCAL_RANK                      number of this process on its host, for the script's own use
    HPSEARCH_COMM_SECRET            64 hexadecimal digits, equal on all ranks; optional for one user on one host
    HPSEARCH_COMM_INTERFACE         interface, address or network by which others reach this rank; default: by routing
    HPSEARCH_COMM_HOST              a name that divides one machine into several hosts
    HPSEARCH_COMM_TIMEOUT           seconds without progress after which an operation fails
    HPSEARCH_COMM_START_TIMEOUT     seconds in which all ranks must start
    HPSEARCH_COMM_HEARTBEAT_TIMEOUT seconds without an answer after which another host counts as lost
    HPSEARCH_COMM_ALGORITHM         auto, direct, ring, butterfly, hierarchical or naive
    HPSEARCH_COMM_TRANSPORT         auto or tcp
    HPSEARCH_COMM_STREAMS           TCP connections between two ranks of different hosts
    HPSEARCH_COMM_CUDA              auto, nccl or host: how CUDA tensors are sent
    HPSEARCH_COMM_TIMELINE          path of a trace; each rank writes its part next to it
    HPSEARCH_COMM_ELASTIC           set by a launcher that continues without dead ranks: see roster.py

Under torchrun (TORCHELASTIC_USE_AGENT_STORE) the ranks meet in its store, otherwise at rank 0 on MASTER_PORT. Under
mpirun, mpiexec and srun, the launcher's own variables replace RANK and WORLD_SIZE, and usually MASTER_ADDR and
MASTER_PORT too.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import getitem
from typing import Any

from hpsearch_comm.bootstrap.interface import resolve
from hpsearch_comm.bootstrap.rendezvous import LocalRendezvous, MasterRendezvous, StoreRendezvous
from hpsearch_comm.bootstrap.secret import agree_on_secret, parse_secret
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.group import Group
from hpsearch_comm.launchers import MeetingPoint, with_launcher
from hpsearch_comm.options import ALGORITHMS, CUDA_WAYS, TRANSPORTS
from hpsearch_comm.roster import VARIABLE as ELASTIC
from hpsearch_comm.subgroup import related_secret

_PREFIX = "HPSEARCH_COMM_"
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_RANKS = 2**20
_START_TIMEOUT = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a group that the environment sets."""

    rank: int = 0
    size: int = 1
    rendezvous: MasterRendezvous | StoreRendezvous | LocalRendezvous | None = None
    """None for a group of one."""
    secret: bytes | None = field(default=None, repr=False)
    """None if the ranks have to agree on a secret."""
    meeting: str = ""
    """Name of this start of the group, unique among the user's groups. Used to agree on a secret."""
    all_local: bool = False
    """Whether the launcher has started all ranks on one host."""
    by_launcher: bool = False
    """Whether the rendezvous is derived from the launcher's own variables, not from MASTER_ADDR and MASTER_PORT."""
    epoch: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Group, from the variables that are set."""

    def for_group(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return Group's arguments, with a secret. If the ranks have to agree on a secret, wait for all of them.

        Args:
            overrides: Arguments that replace those of the environment.

        Raises:
            RendezvousError: Not all ranks started, or they couldn't agree on a secret; names the missing ranks.
            ConfigurationError: A variable can't be used; names it.
        """
        arguments: dict[str, Any] = {
            "rank": self.rank,
            "size": self.size,
            "rendezvous": self.rendezvous,
            "secret": self.secret,
            "epoch": self.epoch,
            **self.options,
            **overrides,
        }
        if arguments["size"] == 1 or arguments["rendezvous"] is not self.rendezvous or self.rendezvous is None:
            return arguments
        patience = arguments.get("start_timeout", _START_TIMEOUT)
        if not isinstance(patience, int | float) or not patience > 0:
            raise ConfigurationError(f"expected start_timeout to be a number of seconds above 0, got {patience!r}")
        # One deadline for all steps of the start: the secret, the addresses, the connections.
        deadline = arguments.setdefault("deadline", time.monotonic() + patience)
        with self.rendezvous.explained():
            # In a cluster, a host name may start to resolve only after the processes have started.
            resolve(self.rendezvous.host, deadline)
            if arguments["secret"] is None:
                arguments["secret"] = agree_on_secret(
                    arguments["rank"],
                    arguments["size"],
                    f"{self.meeting}/{arguments.get('name', '')}",
                    deadline,
                    host=None if self.all_local else self.rendezvous.host,
                )
        return arguments


def init(**overrides: Any) -> Group:
    """Return the group that the environment describes: `group = comm.init()` in a script that torchrun starts.

    Without any of the variables it is a group of one, so a script also runs alone.

    Args:
        **overrides: Arguments of Group that override the environment, such as `timeout=120`.

    Raises:
        ConfigurationError: A variable is missing or can't be used; names it.
        RendezvousError: Not all ranks started; names the missing ones.
    """
    return Group(**read_environment(os.environ).for_group(overrides))


def read_environment(env: Mapping[str, str]) -> Arguments:
    """Read and check the variables. An empty one counts as not set.

    Args:
        env: The environment, such as `os.environ`.

    Raises:
        ConfigurationError: A variable is missing or invalid; names it, the expected value and the actual one.
    """
    env = {name: value.strip() for name, value in env.items() if value.strip()}
    _warn_of_strangers(env)
    options = {name.removeprefix(_PREFIX).lower(): read(env, name) for name, read in _OPTIONS.items() if name in env}
    env, meeting = with_launcher(env)
    if not any(name in env for name in (*_RENDEZVOUS, "LOCAL_RANK")):
        return Arguments(options=options)
    _require(env, ("RANK", "WORLD_SIZE"))
    size = _whole_number(env, "WORLD_SIZE", 1, _MOST_RANKS)
    rank = _whole_number(env, "RANK", 0, size - 1, "WORLD_SIZE - 1")
    secret = parse_secret(env[_PREFIX + "SECRET"]) if _PREFIX + "SECRET" in env else None
    if meeting is not None:
        return _by_launcher(Arguments(rank, size, secret=secret, by_launcher=True, options=options), meeting)
    if size > 1:
        _require(env, _RENDEZVOUS)
    return Arguments(
        rank,
        size,
        _rendezvous(env) if size > 1 else None,
        secret,
        meeting=f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}/{env.get('TORCHELASTIC_RUN_ID', '')}",
        all_local=_under_torchrun(env) and env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"],
        epoch=_epoch(env),
        options=options,
    )


def _by_launcher(arguments: Arguments, meeting: MeetingPoint) -> Arguments:
    """Add the rendezvous that is derived from a launcher's variables."""
    if meeting.host is None:
        return replace(arguments, rendezvous=LocalRendezvous(meeting.job), meeting=meeting.job, all_local=True)
    # Jobs with the same secret may have derived the same port from their job IDs.
    secret = None if arguments.secret is None else related_secret(arguments.secret, meeting.job)
    rendezvous = MasterRendezvous(meeting.host, meeting.port, meeting.origin)
    return replace(arguments, rendezvous=rendezvous, meeting=meeting.job, secret=secret)


def _rendezvous(env: Mapping[str, str]) -> MasterRendezvous | StoreRendezvous:
    host, port = env["MASTER_ADDR"].strip("[]"), _whole_number(env, "MASTER_PORT", 1, 65535)
    if _under_torchrun(env):
        return StoreRendezvous(host, port, f"hpsearch_comm/{env.get('TORCHELASTIC_RUN_ID', '')}")
    return MasterRendezvous(host, port)


def _under_torchrun(env: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent listens on MASTER_PORT, with a store for its workers."""
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _epoch(env: Mapping[str, str]) -> int:
    """Return the number of this start of the group; 0 if several agents run it.

    Each agent counts only the restarts that its own workers have caused. After a failure, several agents have different
    counts, so the count can only serve as epoch if there is a single agent.
    """
    if "TORCHELASTIC_RESTART_COUNT" not in env or env.get("GROUP_WORLD_SIZE") != "1":
        return 0
    return _whole_number(env, "TORCHELASTIC_RESTART_COUNT", 0, 2**31 - 1)


def _require(env: Mapping[str, str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in env]
    if missing:
        present = ", ".join(f"{name}={env[name]}" for name in (*_RENDEZVOUS, "LOCAL_RANK") if name in env)
        raise ConfigurationError(
            f"expected {' and '.join(missing)} to be set, since {present} is: set all of {', '.join(_RENDEZVOUS)}, as "
            "torchrun does, or none of them for a group of one"
        )


def _whole_number(env: Mapping[str, str], name: str, lowest: int, highest: int, reason: str = "") -> int:
    text = env[name]
    # int() alone would also accept "1_0" and digits of other scripts.
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text) and lowest <= int(text) <= highest:
        return int(text)
    limit = f"{highest} ({reason})" if reason else f"{highest}"
    raise ConfigurationError(f"expected {name} to be a whole number from {lowest} to {limit}, got {text!r}")


def _seconds(env: Mapping[str, str], name: str) -> float:
    try:
        seconds = float(env[name])
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    raise ConfigurationError(f"expected {name} to be a number of seconds above 0, such as 300, got {env[name]!r}")


def _choice(env: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    text = env[name]
    if text in choices:
        return text
    raise ConfigurationError(
        f"expected {name} to be one of {', '.join(choices)}, got {text!r}{_nearest(text, choices)}"
    )


def _nearest(text: str, choices: Sequence[str]) -> str:
    matches = difflib.get_close_matches(text, choices, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _warn_of_strangers(env: Mapping[str, str]) -> None:
    for name in sorted(env):
        if name.startswith(_PREFIX) and name not in VARIABLES:
            _log.warning("%s is no variable of hpsearch_comm%s", name, _nearest(name, VARIABLES))


_OPTIONS: dict[str, Callable[[Mapping[str, str], str], Any]] = {
    _PREFIX + "INTERFACE": getitem,
    _PREFIX + "HOST": getitem,
    _PREFIX + "TIMEOUT": _seconds,
    _PREFIX + "START_TIMEOUT": _seconds,
    _PREFIX + "HEARTBEAT_TIMEOUT": _seconds,
    _PREFIX + "ALGORITHM": partial(_choice, choices=ALGORITHMS),
    _PREFIX + "TRANSPORT": partial(_choice, choices=TRANSPORTS),
    _PREFIX + "STREAMS": partial(_whole_number, lowest=1, highest=64),
    _PREFIX + "CUDA": partial(_choice, choices=CUDA_WAYS),
    _PREFIX + "TIMELINE": getitem,
}
"""The parser of each variable that is an argument of `Group`."""

VARIABLES = (_PREFIX + "SECRET", *_OPTIONS, ELASTIC)
"""This package's own variables."""
