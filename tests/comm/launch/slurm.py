"""A cluster of Slurm with two nodes, which are both this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.comm.forming import wait_until
from tests.comm.meeting import free_port

_PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
MISSING = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]

NODES = ("0x7f000001", "0x7f000002")
"""Names of nodes must not be this host's own, but be known as addresses of it: these are 127.0.0.1 and 127.0.0.2."""

_SETTINGS = """
ClusterName=hpsearch
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Run one as this user; return the variables by which srun finds it."""
    with tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp") as directory, contextlib.ExitStack() as daemons:
        place = Path(directory)
        (place / "state").mkdir()
        (place / "key").write_bytes(os.urandom(128))
        (place / "key").chmod(0o600)
        host = socket.gethostname()
        nodes = [f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4" for node in NODES]
        settings = _SETTINGS.format(
            host=host, user=getpass.getuser(), place=place, port=free_port(), nodes="\n".join(nodes)
        )
        (place / "slurm.conf").write_text(settings)
        env = {"SLURM_CONF": str(place / "slurm.conf"), "PATH": _PATH}

        def start(*words: str) -> None:
            with (place / "log").open("ab") as log:
                process = subprocess.Popen(words, env=os.environ | env, stdout=log, stderr=log)
            daemons.callback(process.wait)
            daemons.callback(process.terminate)

        files = [f"--{name}={place / name}" for name in ("key-file", "pid-file", "log-file", "seed-file")]
        files[0] = f"--key-file={place / 'key'}"
        start("munged", "--foreground", "--force", f"--socket={place / 'munge.socket'}", *files)
        wait_until((place / "munge.socket").exists)
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)

        def idle() -> bool:
            words = ["sinfo", "--noheader", "--format=%T %D"]
            found = subprocess.run(words, env=os.environ | env, capture_output=True, text=True, check=False)
            return found.stdout.split() == ["idle", "2"]

        wait_until(idle)
        yield env
