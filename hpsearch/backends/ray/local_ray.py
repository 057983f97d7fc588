"""Start a Ray on this machine, for this process alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpsearch.backends.ray.access import make_private_token
from hpsearch.backends.ray.failures import first_line
from hpsearch.backends.ray.lean_start import LOOPBACK, lean_start
from hpsearch.backends.ray.own_thread import OwnThread
from hpsearch.errors import BackendError
from hpsearch.worker.guardian import MARK, Guardian, kill_marked, start_guardian

__all__ = ["NICENESS", "START_SECONDS", "forget_start", "start_local"]

START_SECONDS = 180.0
"""Limit of a start. Ray's own, the shortest of which is half a minute, are too short for a busy machine."""

_PORT_SECONDS = 45.0
"""How long Ray's GCS may take until it has a port. Ray keeps Python's lock while it waits for that, so that until then
nothing here can notice a signal, or that the GCS has died.
"""

_START_LIMIT, _PORT_LIMIT = "raylet_start_wait_time_s", "gcs_server_port_wait_time_s"
"""Ray's names for those that can be set, with `RAY_` before them in the environment."""

NICENESS = 5
"""Of a local Ray's workers: they have a third of other programs' weight, so that the driver, and who sits at the
machine, needn't wait for them. With Ray's own 15 it is a thirtieth: beside programs that keep all cores busy they would
need minutes to import torch. On a quiet machine both take as long: seven runs of configs/digits.yaml in turns had
medians of 10.2 s (5) and 10.5 s (15), and minima of 9.6 s and 9.4 s.
"""

_WAY_ON = "What a study has counted is in its journal; `hpsearch resume` goes on."

_starting: list[Guardian] = []
"""Those that would say that this process ended in the start of a Ray."""


def start_local(cpus: int, init: Callable[..., None]) -> ExitStack:
    """Start a Ray on this machine, and a guardian that ends its processes with this one.

    Args:
        cpus: Number of CPUs that it manages.
        init: `ray.init`.

    Returns:
        A stack that ends it when closed.

    Raises:
        BackendError: It can't be started.
    """
    guardian = start_guardian(own_group=False)
    own = {"worker_niceness": NICENESS, _START_LIMIT: int(START_SECONDS)}
    config = {name: value for name, value in own.items() if f"RAY_{name}" not in os.environ}
    options = {"num_cpus": cpus, "include_dashboard": False, "_system_config": config}
    thread = OwnThread(lambda: init(address="local", **options), "hpsearch-ray")
    ending = ExitStack()  # callbacks run in reverse order
    ending.callback(guardian.stop)
    ending.callback(kill_marked, MARK, guardian.mark)
    ending.callback(thread.end)
    logs = Path(_ray_folder(), "ray", "session_latest", "logs")
    _starting.append(guardian)
    guardian.leave_words(
        "hpsearch: this process ended while it started Ray: a process of Ray's died, and Ray ended this one with it, "
        f"or it was killed. Ray's logs are in {logs}. {_WAY_ON}"
    )
    try:
        make_private_token()
        with lean_start(START_SECONDS) as processes, _marked(guardian.mark):
            thread.start(START_SECONDS, processes.died)
    except KeyboardInterrupt:
        ending.close()
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, ChildProcessError) else first_line(error)
        told = f"Ray can't be started on this machine: {reason}. {_advice(error, logs)}. {_WAY_ON}"
        # The thread may still be in Ray's code, which may end this process now: then the guardian writes the message.
        guardian.leave_words(f"hpsearch: {told}")
        thread.end()
        kill_marked(MARK, guardian.mark)
        raise BackendError(told) from error
    return ending


def _advice(error: BaseException, logs: Path) -> str:
    """Return what to do where Ray's start failed."""
    if isinstance(error, ChildProcessError):
        return f"Something killed it, as the system does where memory runs out, or it failed: its logs are in {logs}"
    if isinstance(error, TimeoutError) or "timed out" in str(error).lower():
        return f"The machine may be too busy, or slow: try again when it has less to do. Ray's logs are in {logs}"
    return (
        f"It needs room in {_ray_folder()} (RAY_TMPDIR names another folder) and in memory; `hpsearch doctor` looks at "
        "both"
    )


def _ray_folder() -> str:
    return os.environ.get("RAY_TMPDIR", "/tmp")


def forget_start() -> None:
    """Clear the messages of the guardians of Rays that have started, or whose failure was reported."""
    while _starting:
        _starting.pop().leave_words("")


@contextmanager
def _marked(mark: str) -> Iterator[None]:
    """Mark processes that start in the context, also if they set a process title as Ray's agents do."""
    marks = {MARK: mark, "SPT_NOENV": "1"}  # setproctitle's: don't write the title over the environment
    limits = {_START_LIMIT: START_SECONDS, _PORT_LIMIT: _PORT_SECONDS}
    own = {**LOOPBACK, **{f"RAY_{name}": str(int(seconds)) for name, seconds in limits.items()}}
    marks |= {name: value for name, value in own.items() if name not in os.environ}
    outer = {name: os.environ.get(name) for name in marks}
    os.environ.update(marks)
    try:
        yield
    finally:
        for name, value in outer.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
