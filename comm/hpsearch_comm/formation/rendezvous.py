"""How the ranks of a group learn each other's addresses: through rank 0, through torchrun's store, or beforehand."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError
from hpsearch_comm.formation.dial import dial, socket_for
from hpsearch_comm.formation.handshake import PROOF_BYTES, Challenge, Credentials, Hello, Kind, Verdict, prove
from hpsearch_comm.formation.inheritance import close_in_children
from hpsearch_comm.formation.interface import is_local, is_own_name, local_address, resolve, surroundings
from hpsearch_comm.formation.roll_call import TEXT_BYTES, Admission, RollCall, answer_roll_call
from hpsearch_comm.formation.store_exchange import exchange_through_store

__all__ = ["KnownAddresses", "MasterRendezvous", "Rendezvous", "StoreRendezvous"]

_ADVICE = (
    "Start all ranks within start_timeout of each other, with the same MASTER_ADDR, MASTER_PORT, WORLD_SIZE and "
    "HPSEARCH_COMM_SECRET, and see whether the missing ones have failed before"
)
_TRY_SECONDS = 5.0
"""For one attempt to connect, and for the handshake that follows."""
_BIND_SECONDS = 3.0
"""How long a taken port is tried again: another group of this process may be about to leave it."""


class Rendezvous(ABC):
    """A place where the ranks of a group exchange their addresses."""

    host: str | None = None
    """Where rank 0 is, if that is known: the others reach this rank by the address that the route there starts from."""

    @abstractmethod
    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Give this rank's address, and wait for everybody's.

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
            ConfigurationError: The place can't be used; names the variable to change.
        """


class KnownAddresses(Rendezvous):
    """Addresses that whoever started the ranks has gathered already. Nothing is exchanged.

    Args:
        addresses: By rank.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Give the addresses."""
        if len(self._addresses) != size:
            raise ConfigurationError(f"expected the addresses of all {size} ranks, got {len(self._addresses)}")
        if self._addresses[rank] != mine:
            raise ConfigurationError(
                f"expected the address of rank {rank} to be that of its own listener, {mine}, got "
                f"{self._addresses[rank]}: pass the listener whose address was gathered, and sort the addresses by rank"
            )
        return list(self._addresses)


class MasterRendezvous(Rendezvous):
    """Rank 0 listens on a port that all ranks know, and the others come to it.

    Every connection proves the group's secret before anything else is read. The port is open only until all ranks have
    come; it can be used again at once.

    Args:
        host: MASTER_ADDR: a name or address of rank 0's host, as all ranks know it.
        port: MASTER_PORT, 1 to 65535.
    """

    def __init__(self, host: str, port: int) -> None:
        if not 1 <= port <= 65535:
            raise ConfigurationError(f"expected MASTER_PORT from 1 to 65535, got {port}")
        self.host: str = host
        self.port = port
        self._place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others at rank 0."""
        text = _encode(mine)
        if size == 1:
            return [mine]
        if rank == 0:
            roll_call = RollCall(
                self._listen(deadline),
                size,
                deadline,
                self._place,
                _ADVICE,
                lambda _sock: _admit(credentials),
            )
            texts = [text, *roll_call.take(lambda texts: [text, *texts])]
        else:
            texts = answer_roll_call(
                lambda end: self._connect(rank, credentials, end), rank, size, text, deadline, self._place, _ADVICE
            )
        if len(texts) != size or texts[rank] != text:
            raise RendezvousError(f"expected {size} addresses of which number {rank} is this rank's, got {len(texts)}")
        return [text.decode("utf-8", "replace") for text in texts]

    def _listen(self, deadline: float) -> list[socket.socket]:
        addresses = list(resolve(self.host, deadline))
        if is_own_name(self.host, tuple(addresses)):
            addresses.append(local_address())
        local = [address for address in dict.fromkeys(addresses) if is_local(address)]
        if not local:
            raise ConfigurationError(
                f"expected MASTER_ADDR to be an address of the host of rank 0, got {self.host!r} "
                f"({', '.join(addresses)}): run rank 0 there, or change MASTER_ADDR. {surroundings()}"
            )
        patience = min(deadline, time.monotonic() + _BIND_SECONDS)
        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(self._bind(address, patience)) for address in local]
            opened.pop_all()
        return listeners

    def _bind(self, address: str, patience: float) -> socket.socket:
        while True:
            listener = close_in_children(socket_for(address))
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if listener.family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address, self.port))
                listener.listen(4096)
                return listener
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE or time.monotonic() >= patience:
                    raise ConfigurationError(
                        f"rank 0 can't listen on MASTER_PORT {self.port} of {address}: {error.strerror}. Take another "
                        "port on every rank, or end what holds it (`ss -ltnp` shows it)"
                    ) from None
            time.sleep(0.05)

    def _connect(self, rank: int, credentials: Credentials, deadline: float) -> socket.socket:
        failures: dict[str, OSError] = {}
        refusal: RefusedError | None = None
        for address in resolve(self.host, deadline):
            end = min(deadline, time.monotonic() + _TRY_SECONDS)
            with contextlib.ExitStack() as opened:
                try:
                    sock = opened.enter_context(dial(address, self.port, end))
                    prove(sock, credentials, Hello(rank, 0, Kind.RENDEZVOUS), end)
                except OSError as error:
                    failures[address] = error
                    continue
                except RefusedError as error:
                    refusal = error
                    continue
                opened.pop_all()
                return sock
        if refusal is not None:
            raise refusal
        # What was tried, and what came of it: the name may stand for an address that isn't meant.
        reason = "; ".join(f"{address}: {error.strerror or error}" for address, error in failures.items())
        raise OSError(reason)


class StoreRendezvous(Rendezvous):
    """The store that torchrun keeps at MASTER_ADDR:MASTER_PORT, used as a client.

    Of torch.distributed only `TCPStore` is used. Anyone who reaches the store may write to it, so every entry is signed
    with the group's secret, and is good for one start of the group only. What is kept there doesn't grow as groups
    come and go.

    Args:
        host: MASTER_ADDR.
        port: MASTER_PORT.
        prefix: Begins the names of all keys; the same on every rank.
    """

    def __init__(self, host: str, port: int, prefix: str = "hpsearch_comm") -> None:
        self.host: str = host
        self.port = port
        self.prefix = prefix

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Meet the others in the store."""
        text = _encode(mine)
        if size == 1:
            return [mine]
        texts = exchange_through_store(self.host, self.port, self.prefix, rank, size, text, credentials, deadline)
        return [text.decode("utf-8", "replace") for text in texts]


def _admit(credentials: Credentials) -> Admission:
    challenge = Challenge(credentials, 0)
    yield challenge.nonce
    proof = yield PROOF_BYTES
    judgement = challenge.judge(
        proof, lambda hello: Verdict.ACCEPTED if hello.kind is Kind.RENDEZVOUS else Verdict.UNEXPECTED
    )
    yield judgement.answer
    if judgement.verdict is not Verdict.ACCEPTED or judgement.hello is None:
        raise RefusedError(judgement.verdict.reason)
    return judgement.hello.sender


def _encode(mine: str) -> bytes:
    text = mine.encode()
    if len(text) > TEXT_BYTES:
        raise ConfigurationError(f"expected an address of at most {TEXT_BYTES} bytes, got {len(text)}")
    return text
