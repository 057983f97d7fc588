"""Start a local Ray for this process only, without the services that only a cluster needs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ray._private import ray_constants, services, state
from ray._private.node import Node

from hpsearch.backends.ray.access import make_private_token
from hpsearch.backends.ray.failures import first_line
from hpsearch.errors import BackendError
from hpsearch.worker.child_process import block_preemption, environment
from hpsearch.worker.guardian import MARK, Guardian, kill_marked, start_guardian

START_SECONDS = 180.0
"""Time limit for a start. Ray's own limits, from 30 s, are too short for a busy machine."""

_PORT_SECONDS = 45.0
"""Time limit until Ray's GCS has a port. Ray holds the GIL while it waits for the port. Until then, this process can't
handle a signal, or notice that the GCS has died.
"""

_START_LIMIT, _PORT_LIMIT = "raylet_start_wait_time_s", "gcs_server_port_wait_time_s"
"""Ray's names of the limits that can be set. The environment variables have the prefix `RAY_`."""

NICENESS = 5
"""Nice value of a local Ray's workers. They get a third of the CPU weight of other programs, so that the driver and the
user needn't wait for them. With Ray's default of 15 the weight is a thirtieth: if other programs keep all cores
busy, the import of torch takes minutes. On an idle machine both are equally fast: seven alternating runs of
configs/digits.yaml had medians of 10.2 s (5) and 10.5 s (15), and minima of 9.6 s and 9.4 s.
"""

_WITHOUT_RAY = "`--backend inline` (backend='inline') runs trials one at a time in this process, without Ray"

_WAY_ON = "A study's results are in its journal; `hpsearch resume` continues."

_starting: list[Guardian] = []
"""Guardians that print a message if this process ends while Ray starts."""


def start_local(cpus: int, init: Callable[..., None]) -> ExitStack:
    """Start a Ray on this machine, and a guardian that ends its processes with this one.

    Args:
        cpus: Number of CPUs that it manages.
        init: `ray.init`.

    Returns:
        A stack that ends it when closed.

    Raises:
        BackendError: Ray can't be started.
    """
    guardian = start_guardian(own_group=False)
    system_config = {"worker_niceness": NICENESS, _START_LIMIT: int(START_SECONDS)}
    config = {name: value for name, value in system_config.items() if f"RAY_{name}" not in os.environ}
    options = {"num_cpus": cpus, "include_dashboard": False, "_system_config": config}
    thread = OwnThread(lambda: init(address="local", **options))
    ending = ExitStack()  # callbacks run in reverse order
    ending.callback(guardian.stop)
    ending.callback(kill_marked, MARK, guardian.mark)
    ending.callback(thread.end)
    logs = Path(_ray_folder(), "ray", "session_latest", "logs")
    _starting.append(guardian)
    guardian.leave_message(
        "hpsearch: this process ended while it started Ray: a process of Ray's died, and Ray ended this one with it, "
        f"or it was killed. Ray's logs are in {logs}. {_WAY_ON}"
    )
    try:
        make_private_token()
        with lean_start() as processes, _marked(guardian.mark):
            thread.start(START_SECONDS, lambda: first_dead(processes))
    except KeyboardInterrupt:
        ending.close()
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, ChildProcessError) else first_line(error)
        message = f"Ray can't be started on this machine: {reason}. {_advice(error, logs)}. {_WITHOUT_RAY}. {_WAY_ON}"
        # The thread may still be in Ray's code, which may end this process now: then the guardian writes the message.
        guardian.leave_message(f"hpsearch: {message}")
        thread.end()
        kill_marked(MARK, guardian.mark)
        raise BackendError(message) from error
    return ending


def _advice(error: BaseException, logs: Path) -> str:
    """Return advice for a failed start of Ray."""
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
        _starting.pop().leave_message("")


def _marked(mark: str) -> AbstractContextManager[None]:
    """Mark processes that start in the context, also if they set a process title as Ray's agents do."""
    marks = {MARK: mark, "SPT_NOENV": "1"}  # setproctitle's: don't write the title over the environment
    limits = {_START_LIMIT: START_SECONDS, _PORT_LIMIT: _PORT_SECONDS}
    variables = {**LOOPBACK, **{f"RAY_{name}": str(int(seconds)) for name, seconds in limits.items()}}
    return environment(marks | {name: value for name, value in variables.items() if name not in os.environ})


def _nothing(node: Any) -> None: ...


def _no_dashboard(node: Any, **_: Any) -> None:
    node._webui_url = ""


_IN_PLACE: Mapping[str, Callable[..., None]] = {
    "start_monitor": _nothing,  # the autoscaler, with no machines to ask for
    "start_log_monitor": _nothing,  # it sends workers' output to the driver, which doesn't need it
    "start_api_server": _no_dashboard,  # one without pages, which `include_dashboard=False` still starts
}


_GET_NODE = "get_node"
"""Ray's function that looks up the node that it has started; while there is none it sleeps for a second."""
_START_PROCESS = "start_ray_process"

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this environment variable, Ray's processes listen only on 127.0.0.1, as on macOS. By default they listen
on all interfaces, whatever address their node has.
"""


Processes = list[tuple[str, Any]]
"""Name and `Popen` of each process that Ray has started."""


def first_dead(processes: Processes) -> str | None:
    """Return a message on the first process that has ended; None if all are running."""
    for name, process in list(processes):
        if (code := process.poll()) is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return f"its {name} {how}"
    return None


@contextmanager
def lean_start() -> Iterator[Processes]:
    """Make `ray.init` start no autoscaler, log monitor or dashboard, and listen on 127.0.0.1 alone.

    These take two seconds of CPU time just as workers start, and the autoscaler another one until Ray kills it at the
    end. Nor does Ray sleep until the node has registered. A Ray without these methods starts in its usual way.
    """
    processes: Processes = []
    with ExitStack() as ending:
        for name, method in _IN_PLACE.items():
            _put(ending, Node, name, method)
        _put(ending, services, _GET_NODE, _once_there(getattr(services, _GET_NODE, None)))
        _put(ending, services, _START_PROCESS, _noting(getattr(services, _START_PROCESS, None), processes))
        if not LOOPBACK.keys() & os.environ.keys():  # otherwise the user has set it
            _put(ending, ray_constants, "ENABLE_RAY_CLUSTER", False)
        yield processes


def _put(ending: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a Ray object until `ending` is closed, if the attribute exists."""
    if hasattr(owner, name):
        ending.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def _noting(start_process: Any, processes: Processes) -> Callable[..., Any]:
    """Return a function that starts a process as Ray does, and records it."""

    def start(command: Any, process_type: str, *arguments: Any, **options: Any) -> Any:
        info = start_process(command, process_type, *arguments, **options)
        processes.append((process_type, info.process))
        return info

    return start


def _once_there(get_node: Any) -> Callable[[str, str], Any]:
    """Return a function that looks up a node once it has registered, or after the time limit."""

    def get(gcs_address: str, node_id: str) -> Any:
        with suppress(Exception):  # then Ray's own way is slower, but correct
            global_state = state.GlobalState()
            global_state._initialize_global_state(services._get_gcs_client_options(gcs_address))
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline and all(node["NodeID"] != node_id for node in global_state.node_table()):
                time.sleep(0.02)
        return get_node(gcs_address, node_id)

    return get


class OwnThread:
    """Starts Ray outside the main thread, which continues to handle signals.

    In the main thread Ray would install its own SIGTERM handler. Its native code does so in any case, unknown to
    Python, and aborts the process three seconds after a SIGTERM; so our handler is restored repeatedly. The thread
    stays until `end`, because the kernel ends Ray's processes with the thread that started them. They block the signals
    that a batch system sends before it preempts a job: the driver handles them, and needs Ray for that.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._returned = threading.Event()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hpsearch-ray", daemon=True)

    def start(self, timeout: float, died: Callable[[], str | None] = lambda: None) -> None:
        """Make the call, and wait for its end; its exceptions are raised here.

        Args:
            timeout: Seconds.
            died: Returns a message if a process that the call needs has died, else None.

        Raises:
            TimeoutError: The call takes longer. It continues in its thread.
            ChildProcessError: A process that the call needs has died. The call may continue in its thread.
        """
        self._thread.start()
        deadline = time.monotonic() + timeout
        while not self._returned.wait(0.05):
            _put_back_sigterm()
            if (reason := died()) is not None and not self._returned.is_set():
                raise ChildProcessError(reason)
            if time.monotonic() > deadline:
                raise TimeoutError(f"it took more than {timeout:.0f} seconds")
        _put_back_sigterm()
        if self._error is not None:
            if (reason := died()) is not None:  # while the call held the GIL
                raise ChildProcessError(reason) from self._error
            raise self._error

    def end(self) -> None:
        """End the thread."""
        self._end.set()

    def _run(self) -> None:
        block_preemption()
        try:
            self._call()
        except BaseException as error:  # Ray calls sys.exit, too
            self._error = error
        self._returned.set()
        if self._error is None:
            self._end.wait()


def _put_back_sigterm() -> None:
    handler = signal.getsignal(signal.SIGTERM)  # Python's handler, not the kernel's
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)
