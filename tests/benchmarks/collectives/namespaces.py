"""Two network namespaces joined by a virtual cable: two hosts, as far as the network goes.

Each namespace lives as long as a process that waits for the end of its input. That input ends with this process,
whatever ends it, so nothing is left behind, not even after `kill -9`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import TracebackType

from hpsearch_comm.errors import ConfigurationError

INTERFACE = "hpsearch0"
"""The cable's end, in both namespaces."""

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_READY = "import sys; print('ready', flush=True); sys.stdin.read()"


class Namespaces:
    """Makes them, and removes them at the end.

    Raises:
        ConfigurationError: This isn't root, or a tool is missing.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise ConfigurationError(
                "making network namespaces needs root: run the benchmark with sudo, or without --netns"
            )
        self._ip, self._unshare, self._nsenter = (_tool(name) for name in ("ip", "unshare", "nsenter"))
        self._holders: list[subprocess.Popen[str]] = []
        try:
            for _ in range(2):
                self._holders.append(self._hold())
            self._plug_in()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def command(self, host: int) -> list[str]:
        """Return the prefix of a command line that runs the command in namespace 0 or 1."""
        return [self._nsenter, f"--net=/proc/{self._holders[host].pid}/ns/net", "--"]

    def close(self) -> None:
        """Let go of both; the kernel removes them with the cable."""
        for holder in self._holders:
            holder.communicate()
        self._holders = []

    def _hold(self) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C ends the ranks first, and the namespaces by close().
        holder = subprocess.Popen(
            [self._unshare, "--net", "--", sys.executable, "-S", "-c", _READY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            holder.communicate()
            raise ConfigurationError("no network namespace could be made: it needs the capability CAP_SYS_ADMIN")
        return holder

    def _plug_in(self) -> None:
        first, second = (str(holder.pid) for holder in self._holders)
        ends = [["name", INTERFACE, "netns", first], ["name", INTERFACE, "netns", second]]
        self._run([self._ip, "link", "add", *ends[0], "type", "veth", "peer", *ends[1]])
        for host in range(2):
            inside = [*self.command(host), self._ip]
            self._run([*inside, "address", "add", f"10.213.0.{host + 1}/24", "dev", INTERFACE])
            self._run([*inside, "link", "set", "lo", "up"])
            self._run([*inside, "link", "set", INTERFACE, "up"])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigurationError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        package = "iproute2" if name == "ip" else "util-linux"
        raise ConfigurationError(f"network namespaces need the command `{name}`: install the package {package}")
    return found
