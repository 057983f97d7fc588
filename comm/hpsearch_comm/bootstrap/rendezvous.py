"""Rendezvous: the ranks of a group exchange their addresses, through rank 0 or a store, or know them beforehand."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.connector import Endpoint
from hpsearch_comm.bootstrap.exchange import Venue, meet
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.interface import describe_interfaces, is_local, is_own_name, local_address, resolve
from hpsearch_comm.bootstrap.listener import listen, listen_all
from hpsearch_comm.bootstrap.tasks import in_thread
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
"""Seconds for which a port in use is tried again: another group of this process may be about to release it."""
_LONGEST_SECONDS = 2e6  # the longest timeout that a TCPStore accepts
_GRACE_SECONDS = 1.5
"""Seconds to wait for a store after the deadline, so that it can raise its own error if nobody listens."""


class Rendezvous(ABC):
    """Base class: how the ranks of a group exchange their addresses."""

    host: str | None = None
    """Host of rank 0, if known. The route to it selects the address by which others reach this rank."""
    origin: str = ""
    """How the meeting point was chosen, if not by the user, and what to do if it can't be used."""

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Append `origin` to a ConfigurationError that the block raises."""
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
            credentials: The group's credentials.
            deadline: When to give up, in seconds of `time.monotonic()`.

        Returns:
            The addresses by rank.

        Raises:
            RendezvousError: Some ranks didn't start; names them, on every rank.
            ConfigurationError: The meeting point can't be used; names the variable to change.
        """


class KnownAddresses(Rendezvous):
    """Addresses that are known beforehand. Nothing is exchanged.

    Args:
        addresses: The addresses by rank.
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

    Every connection proves the group's secret before any other data is read. The port is open until all ranks have
    connected; it can be reused at once.

    Args:
        host: MASTER_ADDR: a name or address of rank 0's host, as all ranks know it.
        port: MASTER_PORT, 1 to 65535.
        origin: Source of host and port, if not MASTER_ADDR and MASTER_PORT, and what to do if they can't be used.
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
    """Ranks that are all on this host connect to an abstract Unix socket of rank 0. They don't need a port.

    Every connection proves the group's secret, and that its process is of this user, before any other data is read. The
    socket has no file and ends with its last descriptor, so nothing is left behind even after `kill -9`.

    Args:
        job: Name of the job: the same on every rank, and unique among the user's groups that start on this host.
        advice: Advice to the user about missing ranks.
    """

    host = "127.0.0.1"

    def __init__(self, job: str, advice: str = _LOCAL_ADVICE) -> None:
        self.job = job
        self._advice = advice

    def address(self, credentials: Credentials) -> str:
        """Return the name of the Unix socket for a group of this user."""
        name = f"{self.job} {credentials.digest.hex()}"
        return f"\0hpsearch-comm-{os.geteuid()}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at rank 0."""
        address, description = self.address(credentials), f"a Unix socket of user {os.geteuid()} for {self.job}"

        def listening() -> list[socket.socket]:
            try:
                return [listen(address, deadline)]
            except OSError as error:
                raise RendezvousError(
                    f"rank 0 could not open {description}: {error}. Another group of the same name is starting at the "
                    "same place, two processes have RANK=0, or another user has taken the name"
                ) from None

        venue = Venue(size, credentials, deadline, description, self._advice)
        return meet(venue, rank, mine, listening, lambda: [address])


class StoreRendezvous(Rendezvous):
    """Rank 0 listens on a free port and writes it to torchrun's store; the other ranks read it and connect.

    Anyone who can reach the store may write to it, so its content is not trusted: it is only a hint where to find
    rank 0, which must prove the group's secret. Each group name has one key, which every start overwrites. Only
    `TCPStore` of torch.distributed is used, as a client.

    Args:
        host: MASTER_ADDR.
        port: MASTER_PORT.
        prefix: Prefix of all keys; the same on every rank.
    """

    def __init__(self, host: str, port: int, prefix: str = "hpsearch_comm") -> None:
        self.host: str = host
        self.port = port
        self.prefix = prefix
        self.store_name = f"the store at {host}:{port}"

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at the endpoint in the store. Rank 0 listens on its own address `mine`."""
        if size == 1:
            return [mine]
        venue = Venue(size, credentials, deadline, self.store_name, _ADVICE)
        key = f"{self.prefix}/{credentials.digest.hex()[:16]}"
        try:
            with contextlib.closing(_Entry(_until(deadline, partial(self._open, deadline)), key, deadline)) as entry:
                return meet(venue, rank, mine, partial(entry.listen, mine), entry.endpoints)
        except RuntimeError as error:  # every error of a store is one
            reason = str(error).strip().partition("\n")[0]
            raise RendezvousError(
                f"rank {rank} of {size} can't use {self.store_name}: {reason}. Who keeps it, such as torchrun, may "
                "have ended; otherwise check MASTER_ADDR and MASTER_PORT"
            ) from None

    def _open(self, deadline: float) -> Store:
        """Return the store, or raise RuntimeError with the reason if it can't be used."""
        try:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]
        except ImportError:
            raise ConfigurationError(
                "expected a torch that is built with torch.distributed, since torchrun's store is asked for the "
                "addresses: start the ranks without torchrun (unset TORCHELASTIC_USE_AGENT_STORE)"
            ) from None
        timeout = datetime.timedelta(seconds=min(_LONGEST_SECONDS, max(1.0, deadline - time.monotonic())))
        return TCPStore(self.host, self.port, None, False, timeout, wait_for_workers=False)


class HeldStoreRendezvous(StoreRendezvous):
    """The ranks meet through a torch store of any kind that this process has already opened.

    Args:
        store: The store. It is used from background threads.
        store_name: Name of the store, for errors.
        host: Host of rank 0, if known.
    """

    def __init__(self, store: Store, store_name: str, host: str | None) -> None:
        super().__init__("", 0)
        self.host = host  # type: ignore[assignment]  # only here it may be unknown
        self.store_name = store_name
        self._store = store

    def _open(self, deadline: float) -> Store:
        return self._store


class _Entry:
    """The store's entry with rank 0's endpoint: address, a space and port."""

    def __init__(self, store: Store, key: str, deadline: float) -> None:
        self._store = store
        self._key = key
        self._deadline = deadline

    def close(self) -> None:
        """Disconnect by dropping the store. Otherwise an error's traceback would keep it alive."""
        del self._store

    def listen(self, address: str) -> list[socket.socket]:
        """Listen on a free port of rank 0's host, and write the endpoint."""
        ip = Address.from_text(address).ip
        listening = listen((ip, 0))
        _until(self._deadline, partial(self._store.set, self._key, f"{ip} {listening.getsockname()[1]}"))
        return [listening]

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoint as a list; empty if there is none or it is invalid."""
        text = _until(self._deadline, partial(_read, self._store, self._key)).decode("utf-8", "replace")
        ip, _, port = text.partition(" ")
        try:
            endpoint = str(ipaddress.ip_address(ip)), int(port)
        except ValueError:
            return []
        return [endpoint] if 1 <= endpoint[1] <= 65535 else []


def _read(store: Store, key: str) -> bytes:
    # get() would wait for a missing key.
    return bytes(store.get(key)) if store.check([key]) else b""


def _until(deadline: float, call: Callable[[], T]) -> T:
    """Call a function of a store in a thread, and wait for its result until the deadline.

    A TCPStore itself doesn't keep the deadline: if its host is silent or its process is stopped, it waits forever and
    ignores Ctrl-C. Then the thread is abandoned.

    Raises:
        RuntimeError: The call's own error, or there was no answer.
    """
    outcome = in_thread(call)
    if not wait([outcome], min(_LONGEST_SECONDS, max(0.0, deadline - time.monotonic()) + _GRACE_SECONDS)).done:
        raise RuntimeError("it has not answered until the start_timeout was over")
    return outcome.result()
