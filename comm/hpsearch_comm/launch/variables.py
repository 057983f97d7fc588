"""The environment of a rank: what goes along to other hosts, and what says which rank it is.

As with horovodrun, all variables of the launcher go along but those that say something of its own host or login. They
travel through ssh, within the agent's instructions; none is part of a command line.
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
"""What each host has of its own, by ssh and by its login."""
_OF_LAUNCHERS = re.compile(
    "|".join([*LAUNCHERS, ELASTIC, "TORCHELASTIC_.*", "(?:GROUP|ROLE)_(?:RANK|WORLD_SIZE|NAME)"])
)
"""By which another launcher, that may have started this one, says which rank a process is."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def forwarded_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a rank of another host gets from the launcher's environment."""
    return {name: value for name, value in env.items() if not _OF_A_HOST.fullmatch(name) and name != SECRET}


def without_other_launchers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables but for those of a launcher that has started this one: its ranks are others."""
    return {name: value for name, value in env.items() if not _OF_LAUNCHERS.fullmatch(name)}


def parse_exports(definitions: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Read what `-x NAME` and `-x NAME=VALUE` ask for.

    Args:
        definitions: What follows each `-x`.
        env: Where the value of a bare name is.

    Raises:
        ConfigurationError: A name isn't one, isn't set, or is the secret's.
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
    """Return the variables that say which rank a process is, as torchrun names them.

    Args:
        rank: Its number.
        ranks: Those of its host.
        size: Number of ranks on all hosts.
        address: Rank 0's host, as every rank reaches it.
        port: A port there that is kept for it.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank - ranks.start),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
