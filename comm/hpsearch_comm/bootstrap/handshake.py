"""The handshake: two ranks prove to each other that they belong to one group before any other data is read.

    server                                              client
      | --- nonce S, 32 random bytes ---------------------> |
      | <-- hello, and MAC("client", S, hello) ------------ |    the hello holds the client's own nonce C
      | --- verdict, 1 byte, and MAC("server", S, hello, verdict) -> |

The MAC is HMAC-SHA256 with a key derived from the group's secret and this protocol's version. Each side signs the
other's fresh nonce, which prevents replay. The words "client" and "server" prevent reflection. The server checks the
client's MAC before it parses the hello. The hello contains group, epoch, both ranks and the connection's kind, so a
proof is valid for one connection only. A refusal is signed too, unless the secret itself is wrong: then it is only a
hint.

The hello, 88 bytes and its payload, little endian:

    offset  size  field
         0    32  group         SHA-256 of its name
        32     8  epoch
        40     4  sender        the client's rank
        44     4  target        the server's rank
        48     2  kind
        50     2  stream        index of a stream; in a control connection, how many streams follow
        52     4  length of the payload
        56    32  nonce C
        88        payload       the rank's entry in a rendezvous; else empty

The handshake authenticates the other end. Data sent afterwards is neither encrypted nor signed (only the outcome of a
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
"""Size of the client's message without the payload."""
PAYLOAD_BYTES = 8204
"""Maximum size of the payload: a text of 8192 bytes and 12 bytes before it."""
ANSWER_BYTES = 1 + MAC_BYTES
"""Size of the server's answer."""
SECRET_BYTES = 32

_VERSION = b"hpsearch_comm handshake 2"
_STREAMS = 1024


class ConnectionKind(IntEnum):
    """Purpose of a connection."""

    CONTROL = 0
    """Notices of failure and of leaving."""
    STREAM = 2
    """Tensors; the first one of two ranks on one host also passes descriptors of shared memory."""
    RENDEZVOUS = 3
    """The ranks' addresses, through rank 0."""


class HandshakeReply(IntEnum):
    """The server's verdict on a client's proof."""

    reason: str
    """Why a connection isn't accepted, as a clause."""

    def __new__(cls, value: int, reason: str = "") -> HandshakeReply:
        """Create a member with this number as its value."""
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
        """Whether a later try may succeed: a rank with the same secret forms another group at this endpoint first."""
        return self in (HandshakeReply.WRONG_GROUP, HandshakeReply.WRONG_EPOCH)


class Refusal(RefusedError):
    """The other side refused the proof, or couldn't prove itself.

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
    """The secret of a group, with its name and epoch.

    Raises:
        ConfigurationError: The secret isn't 32 bytes, or the epoch isn't a number from 0 to 2**63 - 1.
    """

    secret: bytes = field(repr=False)
    """32 random bytes."""
    group: str = ""
    """Name that distinguishes groups with the same secret."""
    epoch: int = 0
    """Number that distinguishes successive starts of a group."""

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
        """SHA-256 of the group's name, 32 bytes."""
        return hashlib.sha256(self.group.encode("utf-8", "surrogatepass")).digest()

    def mac(self, *parts: bytes) -> bytes:
        """Return the MAC of the concatenated parts, 32 bytes. Their lengths must be fixed: no separator is added."""
        key = hmac.digest(self.secret, _VERSION, "sha256")
        return hmac.digest(key, b"".join(parts), "sha256")


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's hello: sender, target and kind of a connection."""

    sender: int
    target: int
    kind: ConnectionKind
    stream: int = 0
    """Index of a stream; in a control connection, the number of streams that follow; else 0."""
    payload: bytes = b""
    """The rank's entry in a rendezvous; else empty. At most PAYLOAD_BYTES."""
    nonce: bytes = field(default=b"", compare=False, repr=False)
    """The client's nonce, new for each connection; empty until it has been received."""

    def pack(self, credentials: Credentials, nonce: bytes) -> bytes:
        """Return the hello in its wire format."""
        fields = self.sender, self.target, self.kind, self.stream, len(self.payload)
        return _HELLO.pack(credentials.digest, credentials.epoch, *fields, nonce) + self.payload


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of checking a client's proof."""

    verdict: HandshakeReply
    hello: Hello | None
    """The client's hello; None if the client didn't prove the secret, or the hello is invalid."""
    answer: bytes
    """The answer to send to the client, also after a refusal."""


class Challenge:
    """The server's side of one handshake: send `nonce`, read the proof, `judge` it, send the answer.

    Args:
        credentials: The group's credentials.
        rank: This rank; a hello to another rank is refused.
    """

    def __init__(self, credentials: Credentials, rank: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._credentials = credentials
        self._rank = rank

    @staticmethod
    def missing_bytes(arrived: bytes) -> int:
        """Return how many more bytes to read of a proof that starts with these bytes; 0 if it is complete."""
        if len(arrived) < PROOF_BYTES:
            return PROOF_BYTES - len(arrived)
        length = int(_HELLO.unpack_from(arrived)[6])
        return PROOF_BYTES + length - len(arrived) if length <= PAYLOAD_BYTES else 0

    def judge(self, proof: bytes, admit: Callable[[Hello], HandshakeReply] | None = None) -> Judgement:
        """Check a client's proof. Call it once: a nonce is valid for one proof.

        Args:
            proof: The client's message, PROOF_BYTES or longer.
            admit: Decides whether a hello with the right secret, group, epoch and rank is accepted.
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
        credentials: The group's credentials.
        hello: The hello to send.
    """

    def __init__(self, credentials: Credentials, hello: Hello) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        """The client's nonce. The server's MACs cover it."""
        self._credentials = credentials
        self._hello = hello.pack(credentials, self.nonce)
        self._target = hello.target
        self._nonce = b""

    def message(self, nonce: bytes) -> bytes:
        """Answer the server's nonce with PROOF_BYTES bytes and the payload."""
        self._nonce = nonce
        return self._hello + self._credentials.mac(b"client", nonce, self._hello)

    def check(self, answer: bytes) -> None:
        """Check the server's answer.

        Raises:
            Refusal: The server refuses, or doesn't know the secret.
        """
        verdict_byte, mac = answer[:1], answer[1:]
        verdict = (
            HandshakeReply(verdict_byte[0])
            if verdict_byte[0] in HandshakeReply.__members__.values()
            else HandshakeReply.UNEXPECTED
        )
        # A server with another secret can't sign its refusal.
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
