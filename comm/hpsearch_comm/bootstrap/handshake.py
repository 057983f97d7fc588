"""How two ranks prove to each other that they belong to one group, before anything else on a connection is read.

    server                                              client
      | --- nonce S, 32 random bytes ---------------------> |
      | <-- hello, and MAC("client", S, hello) ------------ |    the hello holds the client's own nonce C
      | --- verdict, 1 byte, and MAC("server", S, hello, verdict) -> |

The MAC is HMAC-SHA256 with a key made from the group's secret and this protocol's version. Each side thereby answers
the other's fresh nonce: what was recorded earlier proves nothing. The two words make a message that is sent back to
its author worthless. The server checks the client's MAC over bytes that it hasn't looked into; only then does it read
the hello, which names group, epoch, both ranks and the connection's purpose: a proof is good for one place only. A
refusal is signed too, except where the secret itself is wrong: there it is only a hint.

The hello, 88 bytes and its payload, little endian:

    offset  size  field
         0    32  group         SHA-256 of its name
        32     8  epoch
        40     4  sender        the client's rank
        44     4  target        the server's rank
        48     2  kind
        50     2  stream        of a stream, its number; of a control connection, how many streams follow
        52     4  length of the payload
        56    32  nonce C
        88        payload       of a rendezvous, the rank's entry; else nothing

The handshake proves who holds the other end. It neither hides nor signs what is sent afterwards (but the outcome of a
rendezvous is signed): run ranks on a network that you trust, or through a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from hpsearch_comm.errors import ConfigurationError, RefusedError

NONCE_BYTES = 32
MAC_BYTES = 32
_HELLO = struct.Struct("<32sqiiHHI32s")
PROOF_BYTES = _HELLO.size + MAC_BYTES
"""What the client sends, without a payload."""
PAYLOAD_BYTES = 8204
"""The longest payload: a text of 8192 bytes and what goes with it."""
ANSWER_BYTES = 1 + MAC_BYTES
"""What the server answers."""
SECRET_BYTES = 32

_VERSION = b"hpsearch_comm handshake 2"
_STREAMS = 1024


class ConnectionKind(IntEnum):
    """What a connection is for."""

    CONTROL = 0
    """Notices of failure and of leaving."""
    DESCRIPTORS = 1
    """Descriptors of shared memory; over a Unix socket only."""
    STREAM = 2
    """Tensors between hosts."""
    RENDEZVOUS = 3
    """The ranks' addresses, through rank 0."""
    PRESENCE = 4
    """Held by a rank that has yet to connect, for who waits for it: its end says that the rank is gone."""


class HandshakeReply(IntEnum):
    """What the server makes of a client's proof."""

    reason: str
    """Why a connection isn't accepted, as a clause."""

    def __new__(cls, value: int, reason: str = "") -> HandshakeReply:
        """Make a member, whose number is its value."""
        member = int.__new__(cls, value)
        member._value_, member.reason = value, reason
        return member

    ACCEPTED = 0
    WRONG_SECRET = 1, "the secrets differ: give every rank the same HPSEARCH_COMM_SECRET"
    WRONG_GROUP = 2, "it belongs to a group of another name: give every rank of a group the same name"
    WRONG_EPOCH = 3, "it belongs to another epoch of the group: a rank of an earlier start may still run"
    WRONG_RANK = 4, "it is meant for another rank: the addresses are mixed up or out of date"
    DUPLICATE = 5, "this rank is connected already: two processes may have been started with the same rank"
    UNEXPECTED = 6, "no such connection is expected: give every rank the same arguments, and run the same version"

    @property
    def is_transient(self) -> bool:
        """Whether it is said by a rank of the same secret that forms another group first, at the same place."""
        return self in (HandshakeReply.WRONG_GROUP, HandshakeReply.WRONG_EPOCH)


class Refusal(RefusedError):
    """The other side didn't accept a proof, or couldn't give one.

    Attributes:
        verdict: The reason.
    """

    def __init__(self, message: str, verdict: HandshakeReply) -> None:
        super().__init__(message, verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Credentials:
    """What every rank of one group knows and nobody else does.

    Raises:
        ConfigurationError: The secret isn't 32 bytes, or the epoch isn't a number from 0 to 2**63 - 1.
    """

    secret: bytes = field(repr=False)
    """32 random bytes."""
    group: str = ""
    """Tells groups that share a secret apart."""
    epoch: int = 0
    """Tells successive starts of a group apart."""

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != SECRET_BYTES:
            got = f"{len(self.secret)} bytes" if isinstance(self.secret, bytes) else type(self.secret).__name__
            raise ConfigurationError(f"a group's secret must be {SECRET_BYTES} bytes, got {got}")
        if not isinstance(self.group, str):
            raise ConfigurationError(f"a group's name must be text, got {type(self.group).__name__}")
        if not isinstance(self.epoch, int) or not 0 <= self.epoch < 2**63:
            raise ConfigurationError(f"a group's epoch must be a number from 0 to 2**63 - 1, got {self.epoch!r}")

    @property
    def digest(self) -> bytes:
        """The 32 bytes that stand for the group's name on the wire."""
        return hashlib.sha256(self.group.encode("utf-8", "surrogatepass")).digest()

    def mac(self, *parts: bytes) -> bytes:
        """Sign these bytes; 32 bytes. The parts must be of fixed lengths, since nothing separates them."""
        key = hmac.digest(self.secret, _VERSION, "sha256")
        return hmac.digest(key, b"".join(parts), "sha256")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who opens a connection to whom, and for what."""

    sender: int
    target: int
    kind: ConnectionKind
    stream: int = 0
    """Of a stream, its number; of a control connection, how many streams follow it; else 0."""
    payload: bytes = b""
    """What the client has to say, PAYLOAD_BYTES at most: of a rendezvous, the rank's entry."""
    nonce: bytes = field(default=b"", compare=False, repr=False)
    """The client's, fresh for each connection; empty until it has come."""

    def pack(self, credentials: Credentials, nonce: bytes) -> bytes:
        """Return the bytes of the wire."""
        fields = self.sender, self.target, self.kind, self.stream, len(self.payload)
        return _HELLO.pack(credentials.digest, credentials.epoch, *fields, nonce) + self.payload


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a client's proof."""

    verdict: HandshakeReply
    hello: Hello | None
    """Who the client is; None where it didn't prove the secret, or what it says can't be read."""
    answer: bytes
    """To be sent to the client, whatever the verdict."""


class Challenge:
    """The server's side of one handshake: send `nonce`, read the proof, `judge` it, send the answer.

    Args:
        credentials: The group's.
        rank: This rank; a hello for another one is refused.
    """

    def __init__(self, credentials: Credentials, rank: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._credentials = credentials
        self._rank = rank

    @staticmethod
    def missing_bytes(arrived: bytes) -> int:
        """Return how many bytes are to be read next of a proof that begins with these; 0 if it is all there."""
        if len(arrived) < PROOF_BYTES:
            return PROOF_BYTES - len(arrived)
        length = int(_HELLO.unpack_from(arrived)[6])
        return PROOF_BYTES + length - len(arrived) if length <= PAYLOAD_BYTES else 0

    def judge(self, proof: bytes, admit: Callable[[Hello], HandshakeReply] | None = None) -> Judgement:
        """Decide on a client's proof. Called once: a nonce is good for one proof.

        Args:
            proof: What came from the client, PROOF_BYTES or more.
            admit: Has the last word on a hello of the right secret, group, epoch and rank.
        """
        opaque, mac = proof[:-MAC_BYTES], proof[-MAC_BYTES:]
        if not hmac.compare_digest(mac, self._credentials.mac(b"client", self.nonce, opaque)):
            return Judgement(
                HandshakeReply.WRONG_SECRET, None, bytes([HandshakeReply.WRONG_SECRET]).ljust(ANSWER_BYTES, b"\0")
            )
        verdict, hello = self._read(opaque)
        if hello is not None and verdict is HandshakeReply.ACCEPTED and admit is not None:
            verdict = admit(hello)
        verdict_byte = bytes([verdict])
        return Judgement(
            verdict, hello, verdict_byte + self._credentials.mac(b"server", self.nonce, opaque, verdict_byte)
        )

    def _read(self, opaque: bytes) -> tuple[HandshakeReply, Hello | None]:
        digest, epoch, sender, target, kind, stream, length, nonce = _HELLO.unpack_from(opaque)
        payload = opaque[_HELLO.size :]
        if digest != self._credentials.digest:
            return HandshakeReply.WRONG_GROUP, None
        if epoch != self._credentials.epoch:
            return HandshakeReply.WRONG_EPOCH, None
        is_valid = kind in ConnectionKind.__members__.values() and stream < _STREAMS and length == len(payload)
        if min(sender, target) < 0 or not is_valid:
            return HandshakeReply.UNEXPECTED, None
        hello = Hello(sender, target, ConnectionKind(kind), stream, payload, nonce)
        return (HandshakeReply.ACCEPTED if target == self._rank else HandshakeReply.WRONG_RANK), hello


class Proof:
    """The client's side of one handshake: read NONCE_BYTES, send `message`, read ANSWER_BYTES, `check` them.

    Args:
        credentials: The group's.
        hello: Who connects to whom, and for what.
    """

    def __init__(self, credentials: Credentials, hello: Hello) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        """This side's own, which the server's answers repeat in their signatures."""
        self._credentials = credentials
        self._hello = hello.pack(credentials, self.nonce)
        self._target = hello.target
        self._nonce = b""

    def message(self, nonce: bytes) -> bytes:
        """Answer the server's nonce with PROOF_BYTES bytes and the payload."""
        self._nonce = nonce
        return self._hello + self._credentials.mac(b"client", nonce, self._hello)

    def check(self, answer: bytes) -> None:
        """Read the server's answer.

        Raises:
            Refusal: The server refuses, or doesn't know the secret itself.
        """
        verdict_byte, mac = answer[:1], answer[1:]
        verdict = (
            HandshakeReply(verdict_byte[0])
            if verdict_byte[0] in HandshakeReply.__members__.values()
            else HandshakeReply.UNEXPECTED
        )
        # Who says that the secret is wrong can't sign it.
        signed = verdict is not HandshakeReply.WRONG_SECRET
        if signed and not hmac.compare_digest(
            mac, self._credentials.mac(b"server", self._nonce, self._hello, verdict_byte)
        ):
            raise Refusal(
                f"what answers at the address of rank {self._target} doesn't know the group's secret: another program "
                "has taken the port, or the secrets differ",
                HandshakeReply.WRONG_SECRET,
            )
        if verdict is not HandshakeReply.ACCEPTED:
            raise Refusal(f"rank {self._target} refused the connection: {verdict.reason}", verdict)
