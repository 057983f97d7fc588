"""Run a searcher in a separate process, so that the sweep continues while it computes.

It is a new Python process, not a fork, since the sweep's process has threads, and its main module may start a sweep.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hpsearch.errors import SearcherError
from hpsearch.searchers import Past
from hpsearch.searchers.calls import Calls, DirectCalls, SearcherAnswer
from hpsearch.study.build import build_searcher
from hpsearch.sweep.sweep import Sweep
from hpsearch.worker.child_process import ignore_preemption, thread_environment

_MOST_SAID = 2000
"""Last bytes of a dead process's output."""

_MOST_CALLS = 100
"""Maximum number of calls per message, since pickling blocks the sweep."""

_Call = tuple[str, str, tuple[Any, ...]]
"""`tell` or `ask`, the method of the searcher, and its arguments."""


class ProcessCalls(Calls):
    """Makes a searcher's calls in a process that ends with this one, from a thread that waits for it.

    Args:
        sweep: The sweep.
        past: Trials of other searches, for a warm start.
    """

    def __init__(self, sweep: Sweep, past: Sequence[Past] = ()) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        self._connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from hpsearch.run.searcher_process import serve; serve({other.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(other.fileno(),),
                # With one thread sums are made in one order, and trials keep their cores.
                env={**os.environ, **thread_environment(1), "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the sweep, which ends it
            )
        self._thread = ThreadPoolExecutor(1, "hpsearch-searcher")
        self._answers: list[Future[SearcherAnswer]] = []
        self._queued: list[_Call] = []
        """Calls that are sent with the next request."""
        self._thread.submit(self._send, (sweep.to_json(), tuple(past)))

    def tell(self, method: str, *arguments: Any) -> None:
        """Queue a call."""
        self._queued.append(("tell", method, arguments))
        if len(self._queued) == _MOST_CALLS:
            self._thread.submit(self._send, self._queued)
            self._queued = []

    def ask(self, method: str, *arguments: Any) -> None:
        """Queue a call."""
        self._answers.append(self._thread.submit(self._call, [*self._queued, ("ask", method, arguments)]))
        self._queued = []

    def ready(self) -> bool:
        """Return whether `answer` would return or raise without waiting."""
        return self._answers[0].done()

    def answer(self) -> SearcherAnswer:
        """Wait for the next answer, and return it.

        Raises:
            SearcherError: The searcher or its process has failed.
        """
        return self._answers.pop(0).result()

    def close(self) -> None:
        """End the process at once. All its data is in the journal."""
        self._process.kill()
        self._process.wait()
        self._thread.shutdown(cancel_futures=True)
        self._connection.close()
        self._output.close()

    def _send(self, message: Any) -> None:
        """Send a message; a dead process is reported when its answer is missing."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _call(self, message: Any) -> SearcherAnswer:
        self._send(message)
        try:
            answer: SearcherAnswer | SearcherError = self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise SearcherError(self._death()) from error
        if isinstance(answer, SearcherError):
            raise answer
        return answer

    def _death(self) -> str:
        code = self._process.wait()
        self._output.seek(max(self._output.seek(0, os.SEEK_END) - _MOST_SAID, 0))
        output = self._output.read().decode(errors="replace").strip()
        last = f"; its last output:\n{output}" if output else ""
        return (
            f"the searcher's process must live as long as the sweep, but it ended with exit code {code}: resume the "
            f"study, which starts it again{last}"
        )


def serve(descriptor: int) -> None:
    """Main function of the process: execute calls until the pipe is closed."""
    ignore_preemption()
    connection = Connection(descriptor)
    failed: SearcherError | None = None
    with contextlib.suppress(EOFError, OSError):
        sweep, past = connection.recv()
        try:
            calls = DirectCalls(build_searcher(Sweep.from_json(sweep), past))
        except Exception as error:
            failed = SearcherError(f"the searcher can't be built: {error}")
        while True:
            batch: list[_Call] = connection.recv()
            try:
                for kind, method, arguments in batch if failed is None else ():
                    getattr(calls, kind)(method, *arguments)
            except SearcherError as error:
                failed = error
            if batch[-1][0] == "ask":
                connection.send(calls.answer() if failed is None else failed)
