"""The launcher's command line: its parser, and checks of the arguments."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from hpsearch_comm.bootstrap.secret import new_secret, parse_secret
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.hosts import (
    LOCAL,
    Host,
    HostRanks,
    assign_ranks,
    is_here,
    merge_local,
    parse_hostfile,
    parse_hosts,
)
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.variables import SECRET, parse_exports

_MOST_RANKS = 2**20
_START_TIMEOUT = "HPSEARCH_COMM_START_TIMEOUT"
_HEARTBEAT_TIMEOUT = "HPSEARCH_COMM_HEARTBEAT_TIMEOUT"
_INTERFACE = "HPSEARCH_COMM_INTERFACE"
_SECONDS = 60.0
_ELASTIC_SECONDS = 600.0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hpsearch_comm.launch",
        description="Start ranks on this host and on others, as horovodrun does: a script needs "
        "only hpsearch_comm.init().",
        usage="%(prog)s -np N [-H HOST:SLOTS,...] [option]... {script.py | -m module | program} [argument]...",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "--num-proc", type=int, metavar="N", help="ranks to start (default: the number of slots)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts with their slots")
    where.add_argument("--hostfile", metavar="FILE", help="the same in a file: `host slots=N` or `host:N` on each line")
    add("-m", "--module", action="store_true", help="the program is a Python module")
    add("-x", "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable for all ranks")
    add("--min-np", "--min-num-proc", type=int, metavar="N", help="continue without dead ranks while N are left")
    add("--elastic-timeout", type=float, metavar="S", help="seconds to wait for a rank after a failure (600)")
    add("--wdir", metavar="DIR", help="directory to start in, on every host (default: this one)")
    add("--python", metavar="PATH", help="Python interpreter on every host (default: the one that runs this)")
    add("--output", type=Path, metavar="DIR", help="also write each rank's output to DIR/rank.N.txt")
    add("--no-prefix", action="store_true", help="don't start output lines with the rank")
    add("--interface", metavar="NAME", help="interface or network between the hosts, such as eth0 or 10.1.0.0/16")
    add(
        "--start-timeout",
        type=float,
        metavar="S",
        help="seconds until all hosts answer, then until all ranks have started (60)",
    )
    add("--ssh-port", type=int, metavar="PORT", help="port of ssh on the other hosts")
    add("--ssh-identity", metavar="FILE", help="private key for ssh")
    add("--ssh-config", metavar="FILE", help="configuration file of ssh")
    add("--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="as `ssh -o`")
    add("-v", "--verbose", action="store_true", help="print what is started where")
    add("program", help=argparse.SUPPRESS)
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def read_job(arguments: argparse.Namespace, env: Mapping[str, str]) -> LaunchJob:
    """Return the job that the command line and the environment describe.

    Args:
        arguments: The arguments, parsed by `make_parser()`.
        env: The launcher's environment.

    Raises:
        ConfigurationError: The arguments are invalid or contradict each other, or a file can't be read.
    """
    host_ranks = _host_ranks(arguments)
    least, elastic_timeout = _elastic(arguments, host_ranks[-1].ranks.stop)
    exports = parse_exports(arguments.env, env)
    if arguments.interface:
        exports[_INTERFACE] = arguments.interface
    if arguments.start_timeout is not None:
        exports[_START_TIMEOUT] = f"{_positive(arguments.start_timeout, '--start-timeout'):g}"
    merged_env = {**env, **exports}
    python = arguments.python or sys.executable
    return LaunchJob(
        host_ranks=host_ranks,
        command=_command(python, arguments),
        python=python,
        directory=arguments.wdir or _current_directory(),
        secret=(parse_secret(env[SECRET]) if env.get(SECRET, "").strip() else new_secret()).hex(),
        environment=dict(env),
        exports=exports,
        interface=merged_env.get(_INTERFACE, "").strip() or None,
        ssh=_ssh_options(arguments),
        start_timeout=_seconds(merged_env, _START_TIMEOUT),
        silence=_seconds(merged_env, _HEARTBEAT_TIMEOUT),
        prefix=not arguments.no_prefix,
        output=arguments.output,
        least=least,
        elastic_timeout=elastic_timeout,
        verbose=arguments.verbose,
    )


def _host_ranks(arguments: argparse.Namespace) -> tuple[HostRanks, ...]:
    size = arguments.num_proc
    if size is not None and not 1 <= size <= _MOST_RANKS:
        raise ConfigurationError(f"expected -np to be a whole number from 1 to {_MOST_RANKS}, got {size}")
    if arguments.hosts is not None:
        hosts = parse_hosts(arguments.hosts)
    elif arguments.hostfile is not None:
        hosts = parse_hostfile(_content(arguments.hostfile), arguments.hostfile)
    elif size is None:
        raise ConfigurationError("expected how many ranks to start (-np), or hosts with slots (-H or --hostfile)")
    else:
        hosts = (Host(LOCAL, size),)
    hosts = merge_local(hosts, is_here)
    return assign_ranks(hosts, sum(host.slots for host in hosts) if size is None else size)


def _elastic(arguments: argparse.Namespace, size: int) -> tuple[int | None, float]:
    """Return the minimum number of ranks (None if the job is not elastic), and the timeout for meeting again."""
    least, seconds = arguments.min_np, arguments.elastic_timeout
    if least is not None and not 1 <= least <= size:
        raise ConfigurationError(f"expected --min-np to be a whole number from 1 to {size} (-np), got {least}")
    if least is None and seconds is not None:
        raise ConfigurationError(
            f"expected --elastic-timeout with --min-np, the number of ranks that suffice; got {seconds:g} alone"
        )
    return least, _ELASTIC_SECONDS if seconds is None else _positive(seconds, "--elastic-timeout")


def _command(python: str, arguments: argparse.Namespace) -> tuple[str, ...]:
    is_script = arguments.program.endswith(".py")
    before = (python, "-m") if arguments.module else (python,) if is_script else ()
    return (*before, arguments.program, *arguments.arguments)


def _ssh_options(arguments: argparse.Namespace) -> tuple[str, ...]:
    config, port, identity = arguments.ssh_config, arguments.ssh_port, arguments.ssh_identity
    if port is not None and not 1 <= port <= 65535:
        raise ConfigurationError(f"expected --ssh-port from 1 to 65535, got {port}")
    options = [("-F", config), ("-p", port), ("-i", identity), *(("-o", option) for option in arguments.ssh_option)]
    return tuple(word for flag, value in options if value is not None for word in (flag, str(value)))


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"expected --hostfile to be a text file that can be read, got {file}: {error}"
        ) from None


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise ConfigurationError(
            f"expected a directory to start in, got {error.strerror} for this one: name another (--wdir)"
        ) from None


def _seconds(env: Mapping[str, str], name: str) -> float:
    text = env.get(name, "").strip()
    try:
        return _positive(float(text), name) if text else _SECONDS
    except ValueError:
        raise ConfigurationError(f"expected {name} to be a number of seconds above 0, got {text!r}") from None


def _positive(seconds: float, name: str) -> float:
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    raise ConfigurationError(f"expected {name} to be a number of seconds above 0, got {seconds:g}")
