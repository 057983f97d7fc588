"""How the ranks of a group exchange their addresses: through rank 0, through torchrun's store, or beforehand."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connector import Endpoint
from hpsearch_comm.bootstrap.exchange import Venue, meet
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.interface import describe_interfaces, is_local, is_own_name, local_address, resolve
from hpsearch_comm.bootstrap.listener import listen, listen_all
from hpsearch_comm.bootstrap.secret import meet_on_host
from hpsearch_comm.errors import ConfigurationError, RendezvousError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")

_ADVICE = (
    "Start all ranks within start_timeout of each other, with the same MASTER_ADDR, MASTER_PORT, WORLD_SIZE and "
    "HPSEARCH_COMM_SECRET, and see whether the missing ones have failed before"
)
_LOCAL_ADVICE = (
    "See whether the missing ranks have failed before, and that each of them calls for this group. Containers with "
    "networks of their own count as hosts: for these set MASTER_ADDR, MASTER_PORT and HPSEARCH_COMM_SECRET"
)
_BIND_SECONDS = 3.0
"""How long a taken port is tried again: another group of this process may be about to leave it."""
_LONGEST_SECONDS = 2e6  # what a TCPStore takes as a time-out
_GRACE_SECONDS = 1.5
"""For which a store is waited for behind the deadline: where nobody listens, it says so itself then."""


class Rendezvous(ABC):
    """Where the ranks of a group exchange their addresses."""

    host: str | None = None
    """Where rank 0 is, if that is known: the others reach this rank by the address that the route there starts from."""
    origin: str = ""
    """How the place was chosen, if not by the user, and what to do where it can't be used."""

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """End errors of the place with its origin."""
        try:
            yield
        except ConfigurationError as error:
            if not self.origin:
                raise
            raise ConfigurationError(f"{error}. {self.origin}") from None

    @abstractmethod
    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Send this rank's address, and return the addresses of all.

        Args:
            rank: This rank.
            size: Number of ranks.
            mine: This rank's address; 8192 bytes at most.
            credentials: The group's.
            deadline: When to give up, in seconds of `time.monotonic()`.

        Returns:
            The addresses by rank.

        Raises:
            RendezvousError: Some ranks didn't come; names them, on every rank.
            ConfigurationError: The meeting point can't be used; names the variable to change.
        """


class KnownAddresses(Rendezvous):
    """Addresses that are known beforehand. Nothing is exchanged.

    Args:
        addresses: By rank.
        host: Host of rank 0, if known.
    """

    def __init__(self, addresses: Sequence[str], host: str | None = None) -> None:
        self._addresses = list(addresses)
        self.host = host

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Return the addresses."""
        if len(self._addresses) != size:
            raise ConfigurationError(f"expected the addresses of all {size} ranks, got {len(self._addresses)}")
        return list(self._addresses)


class MasterRendezvous(Rendezvous):
    """Rank 0 listens on a port that all ranks know, and the others connect to it.

    Every connection proves the group's secret before anything else is read. The port is open until all ranks have
    connected; it can be used again at once.

    Args:
        host: MASTER_ADDR: a name or address of rank 0's host, as all ranks know it.
        port: MASTER_PORT, 1 to 65535.
        origin: Where they come from, if not from MASTER_ADDR and MASTER_PORT, and what to do if they can't be used.
    """

    def __init__(self, host: str, port: int, origin: str = "") -> None:
        if not 1 <= port <= 65535:
            raise ConfigurationError(f"expected MASTER_PORT from 1 to 65535, got {port}")
        self.host: str = host
        self.port = port
        self.origin = origin

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at rank 0."""
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        venue = Venue(size, credentials, deadline, address, f"{_ADVICE}. {self.origin}".removesuffix(". "))
        with self.explained():
            return meet(venue, rank, mine, partial(self._listen, deadline), partial(self._endpoints, deadline))

    def _endpoints(self, deadline: float) -> list[Endpoint]:
        return [(ip, self.port) for ip in resolve(self.host, deadline)]

    def _listen(self, deadline: float) -> list[socket.socket]:
        addresses = list(resolve(self.host, deadline))
        if is_own_name(self.host, tuple(addresses)):
            addresses.append(local_address())
        local = [address for address in dict.fromkeys(addresses) if is_local(address)]
        if not local:
            raise ConfigurationError(
                f"expected MASTER_ADDR to be an address of the host of rank 0, got {self.host!r} "
                f"({', '.join(addresses)}): run rank 0 there, or change MASTER_ADDR. {describe_interfaces()}"
            )
        patience = min(deadline, time.monotonic() + _BIND_SECONDS)
        try:
            return listen_all([(address, self.port) for address in local], patience)
        except OSError as error:
            raise ConfigurationError(
                f"rank 0 can't listen on MASTER_PORT {self.port} of {' or '.join(local)}: {error.strerror}. Take "
                "another port on every rank, or end what holds it (`ss -ltnp` shows it)"
            ) from None


class LocalRendezvous(Rendezvous):
    """Ranks that are all on this host meet at an abstract Unix socket of rank 0's, so that no port is agreed upon.

    Every connection proves the group's secret before anything else is read. There is no file, and nothing is left
    behind.

    Args:
        job: The same on every rank, and on no other group of this user that starts on this host at the same time.
    """

    host = "127.0.0.1"

    def __init__(self, job: str) -> None:
        self.job = job

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at rank 0."""
        venue = Venue(size, credentials, deadline, f"a Unix socket for {self.job}", _LOCAL_ADVICE)
        patience = min(deadline, time.monotonic() + _BIND_SECONDS)
        return meet_on_host(venue, rank, mine, f"{self.job} {credentials.digest.hex()}", patience)


class _ThroughStore(Rendezvous):
    """Rank 0 listens on a port of its own, which it writes into a store of torch's; the others come to it.

    Anyone who reaches the store may write to it, so nothing that is read there is trusted: it only says where to look
    for a rank 0 that proves the group's secret. There is one key for each name of a group, overwritten by every start.

    Args:
        store_name: The store, for errors.
        prefix: Begins the names of all keys; the same on every rank.
    """

    def __init__(self, store_name: str, prefix: str) -> None:
        self.store_name = store_name
        self.prefix = prefix

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at the place of rank 0 that the store names. Rank 0 listens on the address that is `mine`."""
        if size == 1:
            return [mine]
        venue = Venue(size, credentials, deadline, self.store_name, _ADVICE)
        key = f"{self.prefix}/{credentials.digest.hex()[:16]}"
        try:
            store = _until(deadline, partial(self._open, deadline))
            with contextlib.closing(_Notice(store, key, deadline)) as notice:
                del store
                return meet(venue, rank, mine, partial(notice.listen, mine), notice.read, notice.keep)
        except RuntimeError as error:  # what every failure of a store is
            reason = str(error).strip().partition("\n")[0]
            raise RendezvousError(
                f"rank {rank} of {size} can't use {self.store_name}: {reason}. Who keeps it, such as torchrun, may "
                "have ended; otherwise check MASTER_ADDR and MASTER_PORT"
            ) from None

    @abstractmethod
    def _open(self, deadline: float) -> Store:
        """Return the store; any RuntimeError says why it can't be used."""


class StoreRendezvous(_ThroughStore):
    """The ranks meet through torchrun's store: see `_ThroughStore`.

    Only `TCPStore` of torch.distributed is used, as a client.

    Args:
        host: MASTER_ADDR.
        port: MASTER_PORT.
        prefix: Prefix of all keys; the same on every rank.
    """

    def __init__(self, host: str, port: int, prefix: str = "hpsearch_comm") -> None:
        super().__init__(f"the store at {host}:{port}", prefix)
        self.host: str = host
        self.port = port

    def _open(self, deadline: float) -> Store:
        return _open_store(self.host, self.port, deadline)


class HeldStoreRendezvous(_ThroughStore):
    """The ranks meet through a store of torch's, of any kind, that this process has opened: see `_ThroughStore`.

    Args:
        store: It; threads of ours use it.
        store_name: What it is, for errors.
        host: Where rank 0 is, if that is known.
        prefix: Begins the names of all keys; the same on every rank.
    """

    def __init__(self, store: Store, store_name: str, host: str | None, prefix: str = "hpsearch_comm") -> None:
        super().__init__(store_name, prefix)
        self.host = host
        self._store = store

    def _open(self, deadline: float) -> Store:
        return self._store


class _Notice:
    """Where rank 0 listens, in a store: its address, a space and its port."""

    def __init__(self, store: Store, key: str, deadline: float) -> None:
        self._deadline = deadline
        self._store = store
        self._key = key
        self._place = ""

    def close(self) -> None:
        """Disconnect: that is what a TCPStore does at its end, which the traceback of an error would put off."""
        del self._store

    def listen(self, address: str) -> list[socket.socket]:
        """Listen on some port of the address, for `keep` to write."""
        listening = listen((Address.from_text(address).ip, 0))
        ip, port, *_ = listening.getsockname()
        self._place = f"{ip} {port}"
        return [listening]

    def keep(self) -> None:
        """Write it wherever it isn't there: the store confirms nothing, and an earlier start may write later."""
        if self._text() != self._place:
            _until(self._deadline, partial(self._store.set, self._key, self._place))

    def read(self) -> list[Endpoint]:
        """Return the place; none where nothing is written, or something else."""
        ip, _, port = self._text().partition(" ")
        try:
            endpoint = str(ipaddress.ip_address(ip)), int(port)
        except ValueError:
            return []
        return [endpoint] if 1 <= endpoint[1] <= 65535 else []

    def _text(self) -> str:
        return _until(self._deadline, partial(_entry, self._store, self._key)).decode("utf-8", "replace")


def _entry(store: Store, key: str) -> bytes:
    # Asking for a key that isn't there would wait for it.
    return bytes(store.get(key)) if store.check([key]) else b""


def _until(deadline: float, call: Callable[[], T]) -> T:
    """Ask a store for something, and wait for the answer until the deadline, which a TCPStore itself does not hold.

    One whose host is silent or whose process is stopped is waited for without end, and without regard for Ctrl-C: the
    thread that does so stays behind.

    Raises:
        RuntimeError: The call's own, or that there was no answer.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="hpsearch-comm-store", daemon=True).start()
    try:
        return outcome.result(min(_LONGEST_SECONDS, max(0.0, deadline - time.monotonic()) + _GRACE_SECONDS))
    except TimeoutError:
        raise RuntimeError("it has not answered until the start_timeout was over") from None


def _open_store(host: str, port: int, deadline: float) -> Store:
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError:
        raise ConfigurationError(
            "expected a torch that is built with torch.distributed, since torchrun's store is asked for the addresses: "
            "start the ranks without torchrun (unset TORCHELASTIC_USE_AGENT_STORE)"
        ) from None
    timeout = datetime.timedelta(seconds=min(_LONGEST_SECONDS, max(1.0, deadline - time.monotonic())))
    return TCPStore(host, port, None, False, timeout, wait_for_workers=False)
