"""Two hosts for a launcher: network namespaces, a real sshd in the second, keys and configuration of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpsearch_comm.errors import ConfigurationError
from tests.benchmarks.collectives.namespaces import INTERFACE, Namespaces
from tests.comm.forming import wait_until
from tests.comm.launch.launching import Launch, launching

FIRST, SECOND = "10.213.0.1", "10.213.0.2"
ALIAS = "second"
"""Of the second host, which ssh alone knows."""
_PORT = 2222
_SERVER = """
Port {port}
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
UsePAM no
StrictModes no
PidFile none
PasswordAuthentication no
ForceCommand echo 'Welcome, and mind the step'; eval "$SSH_ORIGINAL_COMMAND"
"""
"""With a login that writes where the agent will."""
_CLIENT = """
Host {alias}
    HostName {address}
Host *
    User root
    Port {port}
    IdentityFile {folder}/user
    IdentitiesOnly yes
    StrictHostKeyChecking yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    LogLevel ERROR
"""


class SshHosts:
    """The hosts, as long as the context lasts.

    Args:
        folder: Where keys and configuration are; this user's alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = str(folder / "ssh_config")
        self._sshd = _tool("sshd")
        try:
            self.namespaces = Namespaces()
        except ConfigurationError as error:
            pytest.skip(f"two hosts can't be made here: {error}")
        self._own: set[int] = set()

    @contextlib.contextmanager
    def serving(self) -> Iterator[SshHosts]:
        """Let the second host accept connections."""
        self._configure()
        # sshd wants a directory in /run, which it gets for itself alone.
        inside = 'mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$0" -D -e -f "$1"'
        words = ["unshare", "--mount", "--", "sh", "-c", inside, self._sshd, str(self._folder / "sshd_config")]
        log = self._folder / "sshd.log"
        with self.namespaces, log.open("wb") as out:
            server = subprocess.Popen([*self.namespaces.command(1), *words], stderr=out)
            try:
                wait_until(lambda: server.poll() is not None or b"Server listening" in log.read_bytes())
                if server.poll() is not None:
                    pytest.skip(f"no sshd can run here: {log.read_text()}")
                self._own = {process for host in range(2) for process in self.processes(host)}
                yield self
            finally:
                server.terminate()
                server.wait()

    def launcher(self, *words: str) -> tuple[str, ...]:
        """Return the options of the launcher that name ssh's configuration."""
        return ("--ssh-config", self.config, *words)

    def processes(self, host: int) -> dict[int, str]:
        """Return the command lines of processes on host 0 or 1, by process id, without those that this class starts."""
        holder = self.namespaces.command(host)[1].removeprefix("--net=")
        network = Path(holder).stat().st_ino
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(process.name) not in self._own and (process / "ns" / "net").stat().st_ino == network:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words:
                        found[int(process.name)] = words
        return found

    def cut(self) -> None:
        """Pull the cable: what is sent arrives nowhere, and nobody is told."""
        subprocess.run([*self.namespaces.command(0), _tool("ip"), "link", "set", INTERFACE, "down"], check=True)

    def _configure(self) -> None:
        for key in ("host", "user"):
            words = [_tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / key)]
            subprocess.run(words, check=True)
        names = {"folder": self._folder, "port": _PORT, "address": SECOND, "alias": ALIAS}
        (self._folder / "sshd_config").write_text(_SERVER.format(**names))
        (self._folder / "ssh_config").write_text(_CLIENT.format(**names))
        public = " ".join((self._folder / "host.pub").read_text().split()[:2])
        (self._folder / "known_hosts").write_text(f"[{SECOND}]:{_PORT} {public}\n")


@contextlib.contextmanager
def launching_on(hosts: SshHosts, folder: Path, *words: str, **variables: str) -> Iterator[Launch]:
    """Run a launcher on the first host; nothing may be left on either."""
    with launching(folder, *hosts.launcher(*words), before=hosts.namespaces.command(0), **variables) as run:
        yield run
    wait_until(lambda: not hosts.processes(0) and not hosts.processes(1))


def launch_on(hosts: SshHosts, folder: Path, *words: str, data: bytes = b"", **variables: str) -> tuple[int, str, str]:
    """Run a launcher on the first host to its end; return its exit code and what it wrote."""
    with launching_on(hosts, folder, *words, **variables) as run:
        out, err = run.communicate(data)
    return run.process.returncode, out, err


def found(processes: dict[int, str], word: str) -> int:
    """Return the newest process with this word in its command line."""
    return max(pid for pid, words in processes.items() if word in words)


def _tool(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
    if found is None:
        pytest.skip(f"{name} isn't installed on {socket.gethostname()}: apt-get install openssh-server openssh-client")
    return found
