"""An exchange of addresses through a key-value store that outlives the group and that strangers may write to.

torchrun keeps one store through all restarts of its workers, and each agent counts restarts on its own: neither the
store nor a count says which entries belong to this start of the group. Fresh random numbers do. Under the group's
prefix there are two keys for each rank, one of them seldom used, and overwritten by every start:

    call       by rank 0: its token of 16 random bytes, and whether the exchange is open, complete or has failed
    answer/r   by rank r: the token that it has seen, a random number of its own, milliseconds left, and its text
    refusal/r  by rank 0: the number of an answer to its token that isn't signed as that of its group is
    outcome    by rank 0: the token, every rank's number and text, and why it has failed

A rank answers whatever token it sees, and takes an outcome only if that repeats its own number. So it passes over the
outcome of an earlier start, and answers again as soon as the new token appears. Rank 0 takes only answers to its own
token. Each entry is signed with the group's secret, over its kind, the group's name, epoch and size, and its fields.
Only a refusal is signed without epoch and size, so that who is refused sees whether these differ or the secrets do. The
latter is only a hint, as a stranger may have written it.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from hpsearch_comm.errors import ConfigurationError, RendezvousError
from hpsearch_comm.formation.handshake import Credentials, Refusal, Verdict
from hpsearch_comm.formation.refusals import Refusals
from hpsearch_comm.formation.roll_call import TEXT_BYTES, name_ranks

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["exchange_through_store"]

_RANDOM_BYTES = 16
_CALL = struct.Struct("<32s16sB")  # signature, token, state
_ANSWER = struct.Struct("<32s16s16sI")  # signature, token, number, milliseconds left; the text follows
_OUTCOME = struct.Struct("<32s16s")  # signature, token; an item for each rank and the reason follow
_ITEM = struct.Struct("<16sI")  # number, length of the text that follows
_CONTEXT = struct.Struct("<8sqI")  # kind, epoch, size
_NOBODY = bytes(_RANDOM_BYTES)
_GRACE_SECONDS = 2.0
_LONGEST_SECONDS = 2e6
_log = logging.getLogger(__name__)
_OTHERS = (
    "their secrets differ, or else their group names, epochs or sizes: give every rank the same HPSEARCH_COMM_SECRET "
    "and WORLD_SIZE"
)
_ADVICE = (
    "Start all ranks within start_timeout of each other, with the same HPSEARCH_COMM_SECRET, and see whether the "
    "missing ones have failed before"
)


class _State(IntEnum):
    OPEN = 0
    COMPLETE = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class _Answer:
    token: bytes
    number: bytes
    text: bytes
    deadline: float
    signed: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    token: bytes
    items: tuple[tuple[bytes, bytes], ...]
    """By rank: its number, zero where it didn't come, and its text."""
    reason: str
    """Why the exchange has failed; empty if it hasn't."""


def exchange_through_store(
    host: str, port: int, prefix: str, rank: int, size: int, text: bytes, credentials: Credentials, deadline: float
) -> list[bytes]:
    """Exchange a text per rank through the TCPStore at `host:port`.

    Args:
        host: Where the store is.
        port: Its port.
        prefix: Begins the names of all keys.
        rank: This rank.
        size: Number of ranks, at least 2.
        text: This rank's text.
        credentials: The group's.
        deadline: When to give up, in seconds of `time.monotonic()`. The first one of all ranks counts.

    Returns:
        The texts by rank.

    Raises:
        RendezvousError: Some ranks, or the store, didn't come; names them.
        RefusedError: Rank 0 has another secret.
        ConfigurationError: This torch has no TCPStore.
    """
    deadline = min(deadline, time.monotonic() + _LONGEST_SECONDS)
    place = f"the store at {host}:{port}"
    try:
        board = _Board(_open_store(host, port, deadline), prefix, size, credentials)
        try:
            if rank == 0:
                return _lead(board, text, deadline, place)
            return _follow(board, rank, text, deadline, place)
        finally:
            board.close()
    except RuntimeError as error:  # what every failure of a TCPStore is.
        reason = str(error).strip().partition("\n")[0]
        raise RendezvousError(
            f"rank {rank} of {size} can't use {place}: {reason}. torchrun keeps it, and may have ended; otherwise "
            "check MASTER_ADDR and MASTER_PORT"
        ) from None


def _lead(board: _Board, text: bytes, deadline: float, place: str) -> list[bytes]:
    """Rank 0: call, until every rank has answered or a deadline has passed."""
    began = time.monotonic()
    token, number = secrets.token_bytes(_RANDOM_BYTES), secrets.token_bytes(_RANDOM_BYTES)
    answers: dict[int, _Answer] = {0: _Answer(token, number, text, deadline, True)}
    strangers: set[int] = set()
    pause = 0.002
    while len(answers) < board.size:
        # Again and again: the store confirms nothing, and what a rank of an earlier start wrote last may come later.
        if board.read_call() != (token, _State.OPEN, True):
            board.write_call(token, _State.OPEN)
        for rank in set(range(board.size)) - answers.keys():
            answer = board.read_answer(rank)
            if answer is not None and answer.token == token:
                if answer.signed:
                    answers[rank] = answer
                else:
                    _refuse(board, rank, answer, strangers, place)
        left = min(answer.deadline for answer in answers.values()) - time.monotonic()
        if left <= 0 and len(answers) < board.size:
            reason = _missing(answers, strangers, board.size, place, time.monotonic() - began)
            items = [(answers[r].number, b"") if r in answers else (_NOBODY, b"") for r in range(board.size)]
            board.write_outcome(token, items, reason)
            board.write_call(token, _State.FAILED)
            raise RendezvousError(reason)
        time.sleep(min(pause, max(0.0, left)))
        pause = min(pause * 1.5, 0.1)
    board.write_outcome(token, [(answers[r].number, answers[r].text) for r in range(board.size)], "")
    board.write_call(token, _State.COMPLETE)
    return [answers[rank].text for rank in range(board.size)]


def _follow(board: _Board, rank: int, text: bytes, deadline: float, place: str) -> list[bytes]:
    """Any other rank: answer each new token, until an outcome repeats this rank's number."""
    began = time.monotonic()
    number = secrets.token_bytes(_RANDOM_BYTES)
    answered = b""
    signed = False
    refusals = Refusals(f"rank {rank} of {board.size}", place)
    pause = 0.002
    while True:
        call = board.read_call()
        if call is not None:
            token, state, signed = call
            # Before the new token is answered: rank 0 may have begun again after it completed the exchange.
            if answered and (token != answered or state is not _State.OPEN):
                outcome = board.read_outcome()
                if outcome is not None and outcome.token == answered and outcome.items[rank][0] == number:
                    if outcome.reason:
                        raise RendezvousError(outcome.reason)
                    return [theirs for _number, theirs in outcome.items]
            mine = board.read_answer(rank)
            if mine is None or (mine.token, mine.number) != (token, number):
                board.write_answer(rank, token, number, max(0.0, deadline - time.monotonic()), text)
            answered = token
        refusal = None if signed else board.read_refusal(rank, number)
        if refusal is None:
            refusals.end()
        else:
            refusals.add(refusal)
            if refusals.are_final:
                raise refusal
        # Rank 0 knows this deadline, and is about to say who is missing.
        left = deadline + (_GRACE_SECONDS if signed and answered else 0.0) - time.monotonic()
        if left <= 0:
            raise RendezvousError(_unheard(board, rank, answered, signed, place, time.monotonic() - began))
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.1)


def _refuse(board: _Board, rank: int, answer: _Answer, strangers: set[int], place: str) -> None:
    if rank not in strangers:
        strangers.add(rank)
        _log.warning("rank 0 refused an answer of rank %d in %s: %s", rank, place, _OTHERS)
    board.write_refusal(rank, answer.number)


def _missing(present: Collection[int], strangers: Collection[int], size: int, place: str, waited: float) -> str:
    absent = [rank for rank in range(size) if rank not in present]
    sentence = (
        f"{name_ranks(absent)} of {size} did not come to {place}, where rank 0 waited {waited:.1f} s, until the "
        f"start_timeout of a rank was over. {_ADVICE}"
    )
    wrong = sorted(set(strangers) - set(present))
    if wrong:
        sentence += f". {name_ranks(wrong).capitalize()} were refused: {_OTHERS}"
    return sentence


def _unheard(board: _Board, rank: int, answered: bytes, signed: bool, place: str, waited: float) -> str:
    sentence = f"rank 0 of {board.size} did not come to {place}, where rank {rank} waited {waited:.1f} s. {_ADVICE}"
    if not answered:
        return sentence
    if not signed:
        return (
            f"{sentence}. The call that was found there isn't of this group: it is left from an earlier start, or rank "
            "0 has another secret, group name, epoch or size"
        )
    answers = {other: board.read_answer(other) for other in range(1, board.size)}
    absent = [other for other, answer in answers.items() if answer is None or answer.token != answered]
    if absent:
        return f"{sentence}. It has called, but doesn't go on, and {name_ranks(absent)} did not answer"
    return f"{sentence}. It has called, but doesn't go on: it may have died, or two processes have RANK={rank}"


class _Board:
    """The group's entries in a store: signs what it writes, and says of what it reads whether it is signed."""

    def __init__(self, store: TCPStore, prefix: str, size: int, credentials: Credentials) -> None:
        self.size = size
        self._store = store
        self._credentials = credentials
        self._prefix = f"{prefix}/{credentials.digest.hex()[:16]}"

    def close(self) -> None:
        """Disconnect: that is what a TCPStore does at its end, which the traceback of an error would put off."""
        del self._store

    def write_call(self, token: bytes, state: _State) -> None:
        """Say what rank 0 is doing."""
        signature = self._sign(b"call", token + bytes([state]))
        self._write("call", _CALL.pack(signature, token, state))

    def read_call(self) -> tuple[bytes, _State, bool] | None:
        """Give rank 0's token, its state and whether they are signed; None where there is no call."""
        entry = self._read("call", _CALL.size)
        if entry is None or len(entry) != _CALL.size:
            return None
        signature, token, state = _CALL.unpack(entry)
        signed = hmac.compare_digest(signature, self._sign(b"call", entry[32:]))
        return token, _State(state) if signed else _State.OPEN, signed

    def write_answer(self, rank: int, token: bytes, number: bytes, left: float, text: bytes) -> None:
        """Answer rank 0's token."""
        body = _ANSWER.pack(b"", token, number, int(left * 1000))[32:] + text
        self._write(f"answer/{rank}", self._sign(b"answer", rank.to_bytes(4, "little") + body) + body)

    def read_answer(self, rank: int) -> _Answer | None:
        """Give a rank's answer, to whatever token; None where there is none."""
        entry = self._read(f"answer/{rank}", _ANSWER.size + TEXT_BYTES)
        if entry is None or len(entry) < _ANSWER.size:
            return None
        signature, token, number, milliseconds = _ANSWER.unpack_from(entry)
        signed = hmac.compare_digest(signature, self._sign(b"answer", rank.to_bytes(4, "little") + entry[32:]))
        return _Answer(token, number, entry[_ANSWER.size :], time.monotonic() + milliseconds / 1000, signed)

    def write_refusal(self, rank: int, number: bytes) -> None:
        """Refuse a rank's answer of this number, unless that is done."""
        entry = self._sign_refusal(number) + number
        if self._read(f"refusal/{rank}", len(entry)) != entry:
            self._write(f"refusal/{rank}", entry)

    def read_refusal(self, rank: int, number: bytes) -> Refusal | None:
        """Give why a rank's answer of this number was refused; None if it wasn't."""
        expected = self._sign_refusal(number)
        entry = self._read(f"refusal/{rank}", len(expected) + len(number))
        if entry is None or entry[len(expected) :] != number:
            return None
        known = hmac.compare_digest(entry[: len(expected)], expected)
        verdict = Verdict.WRONG_EPOCH if known else Verdict.WRONG_SECRET
        reason = f"{verdict.reason}, or the ranks have different WORLD_SIZE" if known else verdict.reason
        return Refusal(f"rank 0 refused rank {rank} in the store: {reason}", verdict)

    def write_outcome(self, token: bytes, items: list[tuple[bytes, bytes]], reason: str) -> None:
        """End the exchange."""
        body = token + b"".join(_ITEM.pack(number, len(text)) + text for number, text in items) + reason.encode()
        self._write("outcome", self._sign(b"outcome", body) + body)

    def read_outcome(self) -> _Outcome | None:
        """Give rank 0's outcome, of whatever token, if it is signed."""
        entry = self._read("outcome", _OUTCOME.size + (self.size + 1) * (_ITEM.size + TEXT_BYTES))
        if entry is None or len(entry) < _OUTCOME.size + self.size * _ITEM.size:
            return None
        signature, token = _OUTCOME.unpack_from(entry)
        if not hmac.compare_digest(signature, self._sign(b"outcome", entry[32:])):
            return None
        items: list[tuple[bytes, bytes]] = []
        place = _OUTCOME.size
        for _ in range(self.size):
            number, length = _ITEM.unpack_from(entry, place)
            place += _ITEM.size
            items.append((number, entry[place : place + length]))
            place += length
        return _Outcome(token, tuple(items), entry[place:].decode("utf-8", "replace"))

    def _sign_refusal(self, number: bytes) -> bytes:
        return self._credentials.mac(hashlib.sha256(b"hpsearch_comm store refusal" + number).digest())

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        context = _CONTEXT.pack(kind, self._credentials.epoch, self.size) + self._credentials.digest
        return self._credentials.mac(hashlib.sha256(b"hpsearch_comm store" + context + body).digest())

    def _write(self, key: str, entry: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", base64.b64encode(entry).decode())

    def _read(self, key: str, limit: int) -> bytes | None:
        # Asking for a key that isn't there would wait for it.
        if not self._store.check([f"{self._prefix}/{key}"]):
            return None
        text = self._store.get(f"{self._prefix}/{key}")
        if len(text) > 2 * limit:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return None


def _open_store(host: str, port: int, deadline: float) -> TCPStore:
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError:
        raise ConfigurationError(
            "expected a torch that is built with torch.distributed, since torchrun's store is asked for the addresses: "
            "start the ranks without torchrun (unset TORCHELASTIC_USE_AGENT_STORE)"
        ) from None
    left = datetime.timedelta(seconds=max(1.0, deadline - time.monotonic()))
    return TCPStore(host, port, None, False, left, wait_for_workers=False)
