from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import ConfigurationError, RefusedError
from hpsearch_comm.formation.handshake import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Challenge,
    Credentials,
    Hello,
    Judgement,
    Kind,
    Proof,
    Refusal,
    Verdict,
    prove,
    verify,
)
from tests.comm.forming import PATIENCE, leaking_nothing, new_credentials, read

CREDENTIALS = new_credentials("group", 3)
HELLO = Hello(1, 0, Kind.STREAM, 2)


def shake(
    client: Credentials = CREDENTIALS, server: Credentials = CREDENTIALS, hello: Hello = HELLO
) -> tuple[Proof, Judgement]:
    challenge = Challenge(server, rank=0)
    proof = Proof(client, hello)
    return proof, challenge.judge(proof.message(challenge.nonce))


def test_two_sides_that_share_the_secret_accept_each_other():
    proof, judgement = shake()
    assert (judgement.verdict, judgement.hello) == (Verdict.ACCEPTED, HELLO)
    proof.check(judgement.answer)


@pytest.mark.parametrize(
    ("client", "hello", "verdict"),
    [
        (new_credentials("group", 3), HELLO, Verdict.WRONG_SECRET),
        (Credentials(CREDENTIALS.secret, "other", 3), HELLO, Verdict.WRONG_GROUP),
        (Credentials(CREDENTIALS.secret, "group", 4), HELLO, Verdict.WRONG_EPOCH),
        (CREDENTIALS, Hello(1, 2, Kind.CONTROL), Verdict.WRONG_RANK),
        (CREDENTIALS, Hello(-1, 0, Kind.CONTROL), Verdict.UNEXPECTED),
        (CREDENTIALS, Hello(1, 0, Kind.STREAM, 1024), Verdict.UNEXPECTED),
        (CREDENTIALS, Hello(1, 0, 9), Verdict.UNEXPECTED),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_belong_is_refused_and_told_why(client, hello, verdict):
    proof, judgement = shake(client, hello=hello)
    assert judgement.verdict is verdict
    with pytest.raises(Refusal, match=f"rank {hello.target} refused the connection: {verdict.reason}") as caught:
        proof.check(judgement.answer)
    assert isinstance(caught.value, RefusedError)
    assert caught.value.verdict is verdict


def test_the_last_word_is_the_servers():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    asked: list[Hello] = []

    def admit(hello: Hello) -> Verdict:
        asked.append(hello)
        return Verdict.DUPLICATE

    judgement = challenge.judge(proof.message(challenge.nonce), admit)
    assert (asked, judgement.verdict) == ([HELLO], Verdict.DUPLICATE)
    with pytest.raises(Refusal, match="connected already"):
        proof.check(judgement.answer)


def test_a_proof_is_worth_nothing_for_another_nonce():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    recorded = proof.message(challenge.nonce)
    assert challenge.judge(recorded).verdict is Verdict.ACCEPTED
    assert Challenge(CREDENTIALS, 0).judge(recorded).verdict is Verdict.WRONG_SECRET


def test_a_recorded_answer_is_worth_nothing_for_another_hello():
    challenge, first = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    recorded = challenge.judge(first.message(challenge.nonce)).answer
    second = Proof(CREDENTIALS, HELLO)
    second.message(challenge.nonce)
    with pytest.raises(Refusal, match="doesn't know the group's secret"):
        second.check(recorded)


def test_a_message_sent_back_to_its_author_proves_nothing():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    message = proof.message(challenge.nonce)
    with pytest.raises(Refusal, match="doesn't know the group's secret"):
        proof.check(bytes([Verdict.ACCEPTED]) + message[-32:])
    answer = challenge.judge(message).answer
    assert challenge.judge(message[:-32] + answer[-32:]).verdict is Verdict.WRONG_SECRET


@pytest.mark.parametrize("index", range(PROOF_BYTES))
def test_a_proof_with_a_changed_byte_is_refused(index):
    challenge = Challenge(CREDENTIALS, 0)
    message = bytearray(Proof(CREDENTIALS, HELLO).message(challenge.nonce))
    message[index] ^= 1
    assert challenge.judge(bytes(message)).verdict is Verdict.WRONG_SECRET


@pytest.mark.parametrize("index", range(ANSWER_BYTES))
def test_an_answer_with_a_changed_byte_is_refused(index):
    proof, judgement = shake()
    answer = bytearray(judgement.answer)
    answer[index] ^= 1
    with pytest.raises(Refusal):
        proof.check(bytes(answer))


def test_the_signed_bytes_are_those_of_the_description():
    challenge = Challenge(CREDENTIALS, 0)
    message = Proof(CREDENTIALS, HELLO).message(challenge.nonce)
    fields = struct.unpack("<32sqiiHH32s", message[:84])
    assert fields[:-1] == (hashlib.sha256(b"group").digest(), 3, 1, 0, Kind.STREAM, 2)
    key = hmac.digest(CREDENTIALS.secret, b"hpsearch_comm handshake 1", "sha256")
    assert message[84:] == hmac.digest(key, b"client" + challenge.nonce + message[:84], "sha256")
    answer = challenge.judge(message).answer
    assert answer == b"\0" + hmac.digest(key, b"server" + challenge.nonce + message[:84] + b"\0", "sha256")


@given(st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES))
def test_random_bytes_are_no_proof(proof):
    judgement = Challenge(CREDENTIALS, 0).judge(proof)
    assert (judgement.verdict, judgement.hello) == (Verdict.WRONG_SECRET, None)
    assert judgement.answer == bytes([Verdict.WRONG_SECRET]).ljust(ANSWER_BYTES, b"\0")


@given(st.binary(min_size=44, max_size=44), st.booleans(), st.booleans())
def test_any_hello_of_one_who_knows_the_secret_is_read_within_bounds(rest, right_group, right_epoch):
    challenge = Challenge(CREDENTIALS, 0)
    group = CREDENTIALS.digest if right_group else bytes(32)
    epoch = (3 if right_epoch else -1).to_bytes(8, "little", signed=True)
    hello = (group + epoch + rest)[:84].ljust(84, b"\0")
    judgement = challenge.judge(hello + CREDENTIALS.mac(b"client", challenge.nonce, hello))
    assert judgement.verdict is not Verdict.WRONG_SECRET
    if judgement.verdict is Verdict.ACCEPTED:
        assert right_group
        assert right_epoch
        assert judgement.hello is not None
        assert judgement.hello.target == 0
        assert 0 <= judgement.hello.sender < 2**31
        assert 0 <= judgement.hello.stream < 1024


@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES))
def test_random_bytes_are_no_answer(answer):
    proof = Proof(CREDENTIALS, HELLO)
    proof.message(bytes(NONCE_BYTES))
    with pytest.raises(Refusal):
        proof.check(answer)


def test_an_unknown_verdict_of_one_who_knows_the_secret_is_a_refusal():
    proof = Proof(CREDENTIALS, HELLO)
    hello = proof.message(bytes(NONCE_BYTES))[:84]
    answer = b"\xff" + CREDENTIALS.mac(b"server", bytes(NONCE_BYTES), hello, b"\xff")
    with pytest.raises(Refusal, match="same version"):
        proof.check(answer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"short",), "must be 32 bytes, got 5 bytes"),
        (("0" * 32,), "must be 32 bytes, got str"),
        ((bytes(32), 5), "must be text, got int"),
        ((bytes(32), "", -1), "from 0 to .*, got -1"),
        ((bytes(32), "", 2**63), "from 0 to"),
        ((bytes(32), "", "1"), "from 0 to .*, got '1'"),
    ],
)
def test_credentials_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Credentials(*arguments)


def test_the_secret_is_not_shown():
    secret = b"do not show this to anybody, ok?"
    assert "show" not in repr(Credentials(secret, "group", 1))


def over_sockets(client: Credentials, server: Credentials) -> tuple[object, object]:
    """Do both sides over a pair of sockets; gives what each side returned or raised."""
    deadline = time.monotonic() + PATIENCE
    results: dict[str, object] = {}

    def serve() -> None:
        try:
            results["server"] = verify(theirs, server, deadline)
        except Exception as error:
            results["server"] = error

    mine, theirs = socket.socketpair()
    with mine, theirs:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            prove(mine, client, HELLO, deadline)
            results["client"] = None
            # Whoever is accepted may go on at once: the server reads no byte too many.
            mine.sendall(b"next")
        except Exception as error:
            results["client"] = error
        thread.join()
        if results["client"] is None:
            assert read(theirs, 4) == b"next"
            assert mine.gettimeout() is None
            assert theirs.gettimeout() is None
    return results["client"], results["server"]


def test_blocking_sockets_shake_hands():
    with leaking_nothing():
        assert over_sockets(CREDENTIALS, CREDENTIALS) == (None, HELLO)


def test_blocking_sockets_refuse_a_wrong_secret_on_both_sides():
    with leaking_nothing():
        client, server = over_sockets(new_credentials("group", 3), CREDENTIALS)
    assert isinstance(client, Refusal)
    assert isinstance(server, Refusal)
    assert client.verdict is server.verdict is Verdict.WRONG_SECRET


def test_a_silent_server_is_left_at_the_deadline():
    mine, theirs = socket.socketpair()
    with mine, theirs, pytest.raises(TimeoutError):
        prove(mine, CREDENTIALS, HELLO, time.monotonic() + 0.05)


def test_a_silent_client_is_left_at_the_deadline():
    mine, theirs = socket.socketpair()
    with mine, theirs, pytest.raises(TimeoutError):
        verify(mine, CREDENTIALS, time.monotonic() + 0.05)


def test_an_end_in_the_middle_is_not_a_refusal():
    mine, theirs = socket.socketpair()
    with mine:
        theirs.send(bytes(NONCE_BYTES))
        theirs.shutdown(socket.SHUT_WR)
        with theirs, pytest.raises(ConnectionResetError):
            prove(mine, CREDENTIALS, HELLO, time.monotonic() + PATIENCE)
