"""This process's connection to Ray, and the idle workers that outlive a search."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hpsearch.backends.ray.access import OPEN_CLUSTER, is_loopback, is_open
from hpsearch.backends.ray.failures import first_line
from hpsearch.backends.ray.local_ray import START_SECONDS, OwnThread, forget_start, start_local
from hpsearch.backends.ray.mailbox import Mailbox
from hpsearch.backends.ray.nodes import NAMESPACE, Shape, live_nodes
from hpsearch.errors import BackendError

_POOL_SECONDS = 10.0
"""How long idle workers outlive their search on a cluster that others may wait for."""

_HOST_AND_PORT = re.compile(r"[^/:]+:\d+")

_KNOCK_SECONDS = 10.0
"""Time to connect to a cluster. Ray itself tries for minutes, and doesn't react to Ctrl-C."""

_GCS_SECONDS = 30.0
"""How long a cluster's GCS may be down before it is restarted: half of the time after which Ray ends this process."""

_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's variable with the options of a submitted job."""

_KEPT_HERE = ["/runs/", "/.git/", "/.venv/", "**/__pycache__/"]
"""Paths that aren't sent to a cluster's nodes with the user's code."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that idle workers must share with a search that reuses them."""

    shape: Shape
    mkl_cbwr: str | None
    """It can't change once a process has computed something."""


class Pool:
    """The idle workers and the mailbox that outlive a search, in one Ray session.

    Args:
        shared: Others may need the resources of idle workers.
        pulse: Checks that the session is alive.
        warning: Shown to its users.
    """

    def __init__(self, shared: bool, pulse: Pulse, warning: str = "") -> None:
        self.shared = shared
        self.pulse = pulse
        self.warning = warning
        self._guard = threading.Lock()
        self._searches: set[object] = set()
        self._kind: Kind | None = None
        self._idle: list[tuple[Any, str]] = []
        self._timer: threading.Timer | None = None
        self._mailbox: Any = None

    def check(self) -> None:
        """Check that Ray is alive, before a call that would otherwise hang or end this process.

        Raises:
            BackendError: Ray is lost. This process is disconnected from it.
        """
        lost = self.pulse.lost(time.monotonic())
        if lost is None:
            forget_start()
            return
        with self._guard:
            self._idle.clear()
        shut_down()
        raise BackendError(f"Ray was lost: {lost}. All results are in the journal; `hpsearch resume` continues.")

    def mailbox(self) -> Any:
        """Return the mailbox, which Ray restarts when it dies."""
        if self._mailbox is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            self._mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
        return self._mailbox

    def join(self, search: object, kind: Kind) -> None:
        """Begin a search with workers of this kind.

        Idle workers of another kind are released, since they may hold all resources.
        """
        with self._guard:  # first, so that no worker of another kind is added in between
            self._searches.add(search)
            former, self._kind = self._kind, kind
        if former != kind:
            self.empty()

    def leave(self, search: object) -> None:
        """Record the end of a search, if it has begun."""
        with self._guard:
            self._searches.discard(search)

    @property
    def is_used(self) -> bool:
        """Whether a search of this process runs here."""
        return bool(self._searches)

    def take(self, kind: Kind) -> tuple[Any, str] | None:
        """Take the newest idle worker of this kind, if there is one; return it and its name."""
        with self._guard:
            return self._idle.pop() if self._idle and kind == self._kind else None

    def give(self, kind: Kind, handle: Any, name: str) -> None:
        """Keep an idle worker for a while; end it if a search may wait for its resources."""
        with self._guard:
            if self._searches or kind != self._kind:
                ray.kill(handle, no_restart=True)
                return
            self._idle.append((handle, name))
            if not self.shared:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(_POOL_SECONDS, self.empty)
            self._timer.daemon = True
            self._timer.start()

    def empty(self) -> None:
        """End all idle workers."""
        with self._guard:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if ray.is_initialized():
            for handle, _ in idle:
                ray.kill(handle, no_restart=True)


_pools: dict[str, Pool] = {}
"""By Ray session: a later session of the process can't use the pool."""

_local: list[ExitStack] = []
"""Stacks that end the Ray that this process started; at most one."""


def connect(address: str | None, cpus: int) -> Pool:
    """Connect to this process's Ray, the cluster at `address`, or a new local Ray; return the session's pool.

    Args:
        address: A cluster; None: `RAY_ADDRESS`, or a local Ray.
        cpus: Number of CPUs of a local Ray.

    Raises:
        BackendError: There is no Ray to connect to.
    """
    if ray.is_initialized():
        pool = _pool(shared=True)
        lives = pool.pulse.lost(time.monotonic()) is None
        if lives and (pool.shared or pool.is_used or ray.cluster_resources().get("CPU", 0) >= cpus):
            return pool
        shut_down()  # it is lost, or it is our own local Ray, started for a smaller search
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = _cluster(address)
    if cluster is None:
        _local.append(start_local(cpus, _init))
    else:
        _join(cluster)
    return _pool(shared=cluster is not None)


def is_cluster(address: str | None) -> bool:
    """Return whether `connect` returns a Ray that may have nodes other than this machine."""
    if ray.is_initialized():
        return not _local
    return _cluster(address) is not None


def _cluster(address: str | None) -> str | None:
    """Return the address of the cluster to join; None for a local Ray."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    return None if address == "local" else address


def _join(address: str) -> None:
    code = {} if _has_working_dir() else {"working_dir": str(Path.cwd()), "excludes": _KEPT_HERE}
    try:
        if _HOST_AND_PORT.fullmatch(address):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()
        OwnThread(lambda: _init(address=address, runtime_env=code)).start(START_SECONDS)
    except (Exception, SystemExit) as error:
        raise BackendError(
            f"Ray can't be reached at {address}: {first_line(error)}. Check with `ray status`, name another "
            "--address, or leave --address away to start a local Ray. A cluster that asks for a token needs the head's "
            "~/.ray/auth_token here."
        ) from error


def _has_working_dir() -> bool:
    """Return whether this process is a Ray job that was submitted with code (`ray job submit --working-dir`).

    The job's workers use the same code, and Ray refuses any other.
    """
    with suppress(ValueError):
        job = json.loads(os.environ.get(_JOB, "{}"))
        return "working_dir" in (job.get("runtime_env") or {})
    return False


def _init(**options: Any) -> None:
    """Call `ray.init` without Ray's output."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Failures of Ray's own processes are printed to standard output, even without `log_to_driver`.
    ray_worker.print_to_stdstream = _print_nothing
    ray.init(log_to_driver=False, logging_level=logging.ERROR, namespace=NAMESPACE, **options)


_printing = ray_worker.print_to_stdstream


def _print_nothing(*_: Any, **__: Any) -> None: ...


def shut_down() -> None:
    """End the idle workers, and the local Ray with them."""
    for pool in _pools.values():
        pool.empty()
        pool.pulse.close()
    _pools.clear()
    ray.shutdown()
    ray_worker.print_to_stdstream = _printing
    while _local:
        _local.pop().close()


@atexit.register  # before Ray's own handler, which then has nothing left to do
def _leave() -> None:
    """Shut Ray down at the end of this process, without the half second that Ray waits for messages.

    A Ctrl-C then ends the process at once; the guardian ends what is left.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    forget_start()
    ray.shutdown()


def _pool(shared: bool) -> Pool:
    """Return this session's pool."""
    session = str(ray.get_runtime_context().get_session_name())
    if session not in _pools:
        _pools[session] = Pool(shared, _pulse(0.0 if _local else _GCS_SECONDS), _warning() if shared else "")
    return _pools[session]


def _warning() -> str:
    """Return a warning if the cluster accepts connections without a token, else an empty text."""
    address = ray.get_runtime_context().gcs_address
    if is_loopback(address) or (os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and not is_open(address)):
        return ""
    return f"the cluster at {address} {OPEN_CLUSTER}"


def _pulse(patience: float) -> Pulse:
    context = ray.get_runtime_context()
    sockets = [node["RayletSocketName"] for node in live_nodes() if node["NodeID"] == context.get_node_id()]
    if not sockets:
        raise BackendError("Ray was lost: the raylet of this node has ended. `hpsearch resume` continues the study.")
    (raylet,) = sockets
    host, _, port = context.gcs_address.rpartition(":")
    return Pulse(raylet, (host.strip("[]"), int(port)), patience)


_POLL_SECONDS = 1.0
"""Seconds in which the GCS must accept a connection."""


class Pulse:
    """Checks that the Ray that this process is connected to is still alive, by polling the two processes that it needs.

    Otherwise Ray ends this process without a message: at the next use of the object store if this node's raylet has
    died, and after a minute if the cluster's GCS doesn't answer. A call to such a GCS also hangs until then.

    Args:
        raylet: Path of the socket of this node's raylet.
        gcs: Host and port of the cluster's GCS.
        patience: Seconds for which the GCS may be away; 0: it won't come back. Ray's own patience is a minute.
    """

    def __init__(self, raylet: str, gcs: tuple[str, int], patience: float = 0.0) -> None:
        self._raylet: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._gcs = gcs
        self._patience = patience
        self._away_since: float | None = None
        try:
            self._raylet.connect(raylet)
            self._raylet.setblocking(False)
        except OSError:  # Ray is connected in a way that can't be checked here
            self.close()

    def lost(self, now: float) -> str | None:
        """Return a message if one of the two processes is lost; None if both are alive.

        Args:
            now: Seconds.
        """
        if self._raylet_ended():
            return "the raylet of this node has ended"
        try:
            socket.create_connection(self._gcs, _POLL_SECONDS).close()
        except OSError as error:
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= self._patience:
                host, port = self._gcs
                return f"its GCS at {host}:{port} doesn't answer: {error}"
        else:
            self._away_since = None
        return None

    @property
    def answers(self) -> bool:
        """Whether the GCS answered at the last poll."""
        return self._away_since is None

    def close(self) -> None:
        """Stop polling."""
        if self._raylet is not None:
            self._raylet.close()
            self._raylet = None

    def _raylet_ended(self) -> bool:
        if self._raylet is None:
            return False
        with contextlib.suppress(BlockingIOError):
            try:
                return self._raylet.recv(1) == b""
            except ConnectionError:
                return True
        return False
