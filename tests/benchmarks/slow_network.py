"""Hosts on a network of a chosen speed: network namespaces on a bridge, with a token bucket on both ends of each cable.

host 0   eth0 ══╗         10.214.0.1
host 1   eth0 ══╬══ hub   10.214.0.2      a bucket at eth0 limits what a host sends, one at the hub what it gets
host 2   eth0 ══╝         10.214.0.3

Bandwidth only: kernels without netem can't delay packets. Namespaces live as long as processes that wait for the end of
their input, so nothing is left behind, whatever ends this one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_READY = "import sys; print('ready', flush=True); sys.stdin.read()"
_BURST_SECONDS = 0.002
"""For which a host may send at full speed after a pause: where cores are busy, a shorter one costs bandwidth."""


def address(host: int) -> str:
    """Return a host's address."""
    return f"10.214.0.{host + 1}"


class SlowNetwork:
    """Makes the hosts and the hub.

    Args:
        hosts: How many.
    """

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._holders: list[subprocess.Popen[str]] = []
        try:
            for _ in range(hosts + 1):
                self._hold()
            self._in(hosts, "ip link add name bridge type bridge", "ip link set bridge up")
            for host in range(hosts):
                own, hub = self._holders[host].pid, self._holders[hosts].pid
                _run(f"ip link add eth0 netns {own} type veth peer name port{host} netns {hub}")
                self._in(hosts, f"ip link set port{host} master bridge", f"ip link set port{host} up")
                self._in(
                    host, f"ip address add {address(host)}/24 dev eth0", "ip link set lo up", "ip link set eth0 up"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def command(self, host: int) -> list[str]:
        """Return the prefix of a command line that runs the command on a host."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--"]

    def limit(self, gigabits: float) -> None:
        """Let each host send, and get, at most so many Gbit/s."""
        burst = max(16_384, int(gigabits * 1e9 / 8 * _BURST_SECONDS))
        bucket = f"root tbf rate {round(gigabits * 1e6)}kbit burst {burst} latency 50ms"
        for host in range(self._hosts):
            self._in(host, f"tc qdisc replace dev eth0 {bucket}")
            self._in(self._hosts, f"tc qdisc replace dev port{host} {bucket}")

    def close(self) -> None:
        """Let go of all; the kernel removes them with their cables."""
        for holder in self._holders:
            holder.communicate()
        self._holders = []

    def _hold(self) -> None:
        command = ["unshare", "--net", "--", sys.executable, "-S", "-c", _READY]
        holder = subprocess.Popen(
            [shutil.which("unshare", path=_PATH) or "unshare", *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise OSError("no network namespace could be made: it needs root")

    def _in(self, host: int, *commands: str) -> None:
        for command in commands:
            _run(command, *self.command(host))


@contextlib.contextmanager
def ranks(network: SlowNetwork, module: str, count: int) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """Run a module as ranks of one group, each on a host of its own, until the block ends.

    Args:
        network: With as many hosts, or more.
        module: Joins by `comm.init()`, and reads what `ask` gives from its input until that ends.
        count: How many.
    """
    env = os.environ | {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": "29500",  # of the namespace alone
        "HPSEARCH_COMM_SECRET": secrets.token_hex(32),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [*network.command(rank), sys.executable, "-m", module],
            env=env | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield started
    finally:
        for rank in started:
            rank.communicate()


def ask(started: Sequence[subprocess.Popen[str]], line: str) -> str:
    """Send a line to every rank, and return what rank 0 answers."""
    for rank in started:
        assert rank.stdin is not None
        rank.stdin.write(f"{line}\n")
        rank.stdin.flush()
    assert started[0].stdout is not None
    return started[0].stdout.readline()


def _run(command: str, *before: str) -> None:
    subprocess.run([*before, *command.split()], check=True, env=os.environ | {"PATH": _PATH})
