"""A small process that briefly outlives a worker, to end the worker's children.

A killed worker can't end its children itself. Its guardian waits for the worker's end, for any reason, and kills
the worker's process group, and every process with the worker's mark in its environment: the children that left the
group, and their children. Not found is a child that left the group and never ran another program: it has the worker's
own environment, without the mark.

This file is also run as a program without hpsearch, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MARK = "HPSEARCH_WORKER"
"""Environment variable that marks a worker's children."""

_GIVE_UP_AFTER = 10.0
"""Seconds after which a process that can't be killed is assumed to hang in the kernel."""


@dataclass(frozen=True, slots=True)
class Guardian:
    """A guardian that watches this process."""

    pid: int
    mark: str
    """The value of `HPSEARCH_WORKER` that marks this worker's processes."""
    pipe: IO[bytes]
    """A pipe to the guardian."""

    def leave_message(self, text: str) -> None:
        """Set the line that the guardian writes to standard error when the process ends.

        Args:
            text: Empty: it writes nothing.
        """
        with contextlib.suppress(OSError, ValueError):  # the guardian was killed or stopped
            self.pipe.write(f"{text}\n".encode())

    def stop(self) -> None:
        """Stop the guardian without killing anything."""
        with contextlib.suppress(ProcessLookupError):
            end = _end_of(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            _wait_for(end, self.pid)
        self.pipe.close()
        if os.environ.get(MARK) == self.mark:
            del os.environ[MARK]


def start_guardian(scratch: Path | None = None, *, own_group: bool = True, mark: str | None = None) -> Guardian:
    """Start a guardian for this process.

    The guardian detaches from this process, since Ray's workers kill their children when they end.

    Args:
        scratch: A directory to delete when the process has ended, if it exists by then.
        own_group: For a process that is only a worker: make it the leader of a process group, which its guardian
            kills, and mark it, before it starts any child. False, for any other process: only children that are
            started with `{MARK: guardian.mark}` in their environment are killed.
        mark: Mark of this process's children; None: a new one.
    """
    mark = mark or uuid.uuid4().hex
    if own_group and os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    group = os.getpid() if own_group else 0
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(group), mark, str(scratch or "")]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if own_group else None,
        bufsize=0,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as said:
        pid = int(said.read())
    process.wait()
    if own_group:
        os.environ[MARK] = mark
    return Guardian(pid, mark, process.stdin)


def kill_marked(name: str, value: str, group: int = 0) -> None:
    """Kill all processes with this environment variable or process group, until none is left.

    Returns after ten seconds if some can't be killed. This process itself isn't killed.
    """
    entry = os.fsencode(f"{name}={value}")
    deadline = time.monotonic() + _GIVE_UP_AFTER
    clean = 0
    # Twice: a process that was forked during a scan is in the next one.
    while clean < 2 and time.monotonic() < deadline:
        victims = [
            pid
            for pid in _other_processes()
            if _in_group(pid, group) or entry in _read(f"/proc/{pid}/environ").split(b"\0")
        ]
        clean = 0 if victims else clean + 1
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if victims:
            time.sleep(0.01)


def _other_processes() -> list[int]:
    this_process = os.getpid()
    return [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != this_process
    ]


def _in_group(pid: int, group: int) -> bool:
    """Return whether this process is in the group and alive."""
    if group == 0:
        return False
    # The command, in parentheses, may contain anything; then come state, parent and group.
    state, _, its_group = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:3] or (b"X", b"", b"0")
    return int(its_group) == group and state not in (b"Z", b"X")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # ended, or another user's
        return b""


def _end_of(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 if the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return -1


def _wait_for(end: int, pid: int) -> None:
    """Wait until the process has ended, and close its descriptor."""
    if end >= 0:
        select.select([end], [], [])
        os.close(end)
    while _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"]):
        time.sleep(0.05)


def _main(worker: int, group: int, mark: str, scratch: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    # A pipe wouldn't show the worker's end, as its forked children hold the pipe open, too.
    end = _end_of(worker) if os.getppid() == worker else -1
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    _wait_for(end, worker)
    _write_last_words()
    kill_marked(MARK, mark, group)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_last_words() -> None:
    """Write the last line from the pipe, which forked children may hold open."""
    os.set_blocking(0, False)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(0, 65536):
            text += more
    for last in text.split(b"\n")[-2:-1]:  # each line ends
        if last:
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, last + b"\n")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
