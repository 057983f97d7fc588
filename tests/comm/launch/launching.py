"""Launchers that tests start, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.comm.forming import PATIENCE, wait_until
from tests.run_parts import left_behind

MARK = "HPSEARCH_LAUNCH_TEST"


@dataclass(frozen=True)
class Launch:
    """A launcher that runs, and the files that its ranks may write."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    """In the environment of all its processes."""

    def communicate(self, data: bytes | None = None) -> tuple[str, str]:
        """Wait for its end, also at load 20, where five ranks start anew four times; return what it wrote."""
        out, err = self.process.communicate(data, timeout=10 * PATIENCE)
        return out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape")

    def wait_for(self, *names: str) -> list[str]:
        """Wait until the ranks have written these files, to their ends; return their content."""
        paths = [self.folder / name for name in names]
        wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths))
        return [path.read_text().strip() for path in paths]

    def processes(self) -> list[str]:
        """Name what is there of it, as `pid command line`."""
        return left_behind(self.mark)

    def pids(self, word: str) -> list[int]:
        """Return its processes with this word in their command line, the oldest first."""
        return sorted(int(text.split()[0]) for text in self.processes() if word in text)


@contextlib.contextmanager
def launching(folder: Path, *words: str, before: Sequence[str] = (), **variables: str) -> Iterator[Launch]:
    """Run a launcher in this folder; whatever it has started must have ended with the block.

    Args:
        folder: Also holds its temporary files.
        words: Of its command line.
        before: Words that stand before the command line.
        variables: Of its environment.
    """
    token = secrets.token_hex(8)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HPSEARCH_COMM_", "MASTER_"))}
    env |= {"OMP_NUM_THREADS": "1", MARK: token, "TMPDIR": str(folder), **variables}
    command = [*before, sys.executable, "-m", "hpsearch_comm.launch", *words]
    pipe = subprocess.PIPE
    # Where nohup runs the tests, the launcher would ignore it as they do.
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    signal.signal(signal.SIGHUP, former)
    with process:
        launch = Launch(process, folder, f"{MARK}={token}")
        try:
            yield launch
            wait_until(lambda: not launch.processes())
        finally:
            for _ in range(2):
                for text in launch.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(text.split()[0]), signal.SIGKILL)
            process.kill()


def launch(folder: Path, *words: str, data: bytes | None = b"", **variables: str) -> tuple[int, str, str]:
    """Run a launcher to its end; return its exit code and what it wrote."""
    with launching(folder, *words, **variables) as run:
        out, err = run.communicate(data)
    return run.process.returncode, out, err


def script(folder: Path, text: str, name: str = "train.py") -> str:
    """Write a script; return its name."""
    (folder / name).write_text(textwrap.dedent(text))
    return name


def state(pid: int) -> str:
    """Return the state of a process as in proc(5); X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def all_are(pids: Sequence[int], states: str) -> Callable[[], bool]:
    """Look whether all processes are in one of these states."""
    return lambda: all(state(pid) in states for pid in pids)
