"""The environment of a rank: variables that are forwarded to other hosts, and variables that define the rank.

As with horovodrun, all variables of the launcher are forwarded, except those that describe its host or login. They are
sent through ssh in the agent's orders, never on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launchers import VARIABLES as LAUNCHERS
from hpsearch_comm.roster import VARIABLE as ELASTIC

SECRET = "HPSEARCH_COMM_SECRET"

_OF_A_HOST = re.compile(
    r"_|BASH_.*|DBUS_.*|DISPLAY|HOME|HOST|HOSTNAME|HOSTTYPE|LOGNAME|LS_COLORS|MACHTYPE|MAIL|OLDPWD|OSTYPE|PWD|SHELL|"
    r"SHLVL|SSH_.*|TERM|TERM_.*|TMPDIR|TMUX.*|TTY|USER|WAYLAND_.*|WINDOWID|XAUTHORITY|XDG_.*"
)
"""Variables of a host, set by ssh and the login."""
_OF_LAUNCHERS = re.compile(
    "|".join([*LAUNCHERS, ELASTIC, "TORCHELASTIC_.*", "(?:GROUP|ROLE)_(?:RANK|WORLD_SIZE|NAME)"])
)
"""Variables by which other launchers define a process's rank. Another launcher may have started this one."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def forwarded_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the launcher's environment that are forwarded to ranks on other hosts."""
    return {name: value for name, value in env.items() if not _OF_A_HOST.fullmatch(name) and name != SECRET}


def without_other_launchers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of another launcher that started this one: its ranks are different."""
    return {name: value for name, value in env.items() if not _OF_LAUNCHERS.fullmatch(name)}


def parse_exports(definitions: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `-x NAME` and `-x NAME=VALUE` define.

    Args:
        definitions: The values of the `-x` options.
        env: The environment, with the values for `-x NAME`.

    Raises:
        ConfigurationError: A name is invalid, isn't set, or is that of the secret.
    """
    exports = {}
    for definition in definitions:
        name, equals, value = definition.partition("=")
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"expected -x NAME or -x NAME=VALUE, got {definition!r}")
        if name == SECRET:
            raise ConfigurationError(
                f"expected {SECRET} in the environment, from where the ranks get it without -x, got -x {name}: other "
                "users can read command lines"
            )
        if not equals and name not in env:
            raise ConfigurationError(f"expected {name} to be set, since -x {name} passes it on: set it, or -x {name}=…")
        exports[name] = value if equals else env[name]
    return exports


def rank_variables(rank: int, ranks: range, size: int, address: str, port: int) -> dict[str, str]:
    """Return the variables that define a process's rank, with torchrun's names.

    Args:
        rank: The rank.
        ranks: The ranks of its host.
        size: Number of ranks on all hosts.
        address: Address of rank 0's host that every rank can reach.
        port: A port that is reserved on rank 0's host.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank - ranks.start),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
