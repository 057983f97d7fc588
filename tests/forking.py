"""Python programs in processes of their own, forked from one that has imported torch: each starts in milliseconds.

To import torch, and what its optimizers import when the first is made, takes seconds of a core, and to import ours half
a second. A process that has done so forks another for each program. It is that of all parts of the suite, where they
run side by side; else it is started when a test needs it first, and ends with the tests. The test process itself
can't be forked safely: other tests may have started threads in it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

_ROOT = Path(__file__).parents[1]
_LONGEST = 1 << 20
"""Bytes that a request may have."""

_IMPORTED = ("torch._dynamo", "hpsearch_comm.group", "hpsearch_comm.horovod", "hpsearch_trainers", "hpsearch.run.api")
"""What most programs import. On a bare machine with a GPU some of it can't be."""

SHARED = "HPSEARCH_TESTS_FORKING"
"""Names the descriptor over which a process that forks for several test processes hears them."""
_shared = os.environ.pop(SHARED, None)  # what a test starts doesn't get the descriptor


class Forked:
    """A program that has been started as `python -m` starts it, in the repository's root; used like a Popen.

    Its errors go where this process's go. torch has one thread in it, whatever the environment says.

    Args:
        *words: The name of the module, and what it is called with.
        env: Its environment; this process's by default.
        new_session: Whether it begins a session of its own.
        channel: A descriptor that the program has as its standard input, in place of `stdin`.
    """

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        new_session: bool = False,
        channel: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        """As that of a Popen, once it has been waited for."""
        input_read, input_write = os.pipe()
        output_read, output_write = os.pipe()
        self.stdin: IO[str] = os.fdopen(input_write, "w")
        self.stdout: IO[str] = os.fdopen(output_read)
        self._status, status = socket.socketpair()
        request = {"words": words, "env": dict(os.environ if env is None else env), "new_session": new_session}
        standard = [input_read if channel is None else channel, output_write, 2, status.fileno()]
        socket.send_fds(_forking()[1], [json.dumps(request).encode()], standard)
        os.close(input_read)
        os.close(output_write)
        status.close()
        self._said = self._status.makefile()
        self.pid = int(self._said.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.communicate()

    def poll(self) -> int | None:
        """Return how it ended: its exit code, or minus the number of a signal; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; return how it has ended."""
        if self.returncode is None:
            self.returncode = int(self._said.readline())
            self._said.close()
            self._status.close()
        return self.returncode

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the word of it is on its way
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> str:
        """End its input, and wait for its end; return what it has written since."""
        self.stdin.close()
        with self.stdout:
            said = self.stdout.read()
        self.wait()
        return said


@functools.cache
def _forking() -> tuple[subprocess.Popen[bytes] | None, socket.socket]:
    return start_forking(os.environ) if _shared is None else (None, socket.socket(fileno=int(_shared)))


def start_forking(env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that forks for all who have the socket; it ends when nobody has it any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # of which each message comes as a whole
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            cwd=_ROOT,
            env={**env, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the tests: with them this ends
        )
    return process, ours


def end_forking() -> None:
    """End the process that forks, if this process has started one."""
    if _forking.cache_info().currsize:
        process, control = _forking()
        control.close()
        if process is not None:
            process.wait()
        _forking.cache_clear()


def _next_program(control: socket.socket) -> list[str]:
    """Fork a process for each requested program; return its arguments in the child, and [] in the parent at the end."""
    statuses: dict[int, int] = {}
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ends)
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, _LONGEST)
            _tell_of_ends(statuses)
        if control.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 4)
            if not request:
                return []
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                for descriptor in (ended, ends, *statuses.values()):
                    os.close(descriptor)
                return _become(json.loads(request), descriptors)
            *standard, statuses[child] = descriptors
            for descriptor in standard:
                os.close(descriptor)


def _tell_of_ends(statuses: dict[int, int]) -> None:
    for child in list(statuses):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            with socket.socket(fileno=statuses.pop(child)) as line:
                line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    *standard, status = descriptors
    for place, descriptor in enumerate(standard):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    if request["new_session"]:
        os.setsid()
    with socket.socket(fileno=status) as line:
        line.sendall(b"%d\n" % os.getpid())
    return list(request["words"])


def _code_of(module: str) -> int:
    """Run a module to its end, with all that a Python does there but clearing its memory up."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    return code


def _main() -> None:
    for module in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's, of operators: each program would clear them up at its end
    gc.collect()
    gc.freeze()
    words = _next_program(socket.socket(fileno=int(sys.argv[1])))
    if not words:
        os._exit(0)
    sys.argv = list(words)
    code = _code_of(words[0])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
